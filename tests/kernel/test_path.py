"""How many files a newcomer reads to follow one chat request, bytes in to bytes out."""

import json

from proxy.lab import sessions
from tests.kit.path import files_on_the_path
from tests.kit.running import Start
from tests.kit.upstream import CHAT, completion, json_answer

BESIDE = (
    *("summaries/", "addons/archive/", "memory/sqlite/", "memory/write_behind.py", "breaker.py", "kernel/admission.py"),
    *("addons/billing/", "catalog/price_book.py", "telemetry/"),
)
"""Rooms that only count and report what became of a request, or in which nothing is done where no summaries are wanted,
no texts are stored, nothing is broken or too much, and the store answers in time: of SQLite only the number of recall
exchanges of other processes is read, in case it does not."""


async def test_a_bare_chat_request_can_be_followed_through_thirty_files(narrows: Start) -> None:
    setup = await narrows(json_answer(completion()), real=True, recall="never", preset="structural")
    recorded = sessions.load("long_day")
    ends = [i for i, message in enumerate(recorded["messages"]) if message["role"] == "assistant"]
    for end in ends[:3]:
        body = json.dumps({**recorded, "messages": recorded["messages"][:end]})
        with files_on_the_path() as files:
            async with setup.client.post(setup.url + CHAT, data=body) as reply:
                assert reply.status == 200
                await reply.read()
    path = {name for name in files if not name.startswith(BESIDE)}
    assert {"kernel/handlers.py", "kernel/flow.py", "kernel/prepare.py", "kernel/planning.py"} <= path
    assert len(path) <= 30, sorted(path)
