"""What is said of requests for which nothing is decided: by a process that did not send the one before."""

import asyncio
from uuid import uuid4

import pytest

from proxy.app import App
from proxy.memory import UNTOUCHED, Key, StoreTrouble
from proxy.memory.cached import CachedStore
from proxy.memory.sqlite.store import SqliteStore
from tests.addons.pages.test_conversations import opened
from tests.kit.forms import to_responses
from tests.kit.histories import Json, requests
from tests.kit.rolling import (
    Office,
    office_of_a_test,  # noqa: F401 - a fixture
    summary_header,
)
from tests.kit.stage import TOOLS, Exchange, Stage, working
from tests.kit.talks import REAL, talk

CHAT = requests(talk(8))

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, stage: Stage) -> str:
    """A real store of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{stage.path}"
    return f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}"


async def _asked(stage: Stage, app: App, messages: list[Json], url: str, **fields: object) -> Exchange:
    """A request of a chat without tools, once its digest is stored."""
    exchange = await stage.ask(app, messages, ("x-narrows-conversation", "chat"), tools=None, **fields)
    async with opened(url) as store:
        before = None
        for _ in range(500):
            stored = (await store.memory(Key("local", "chat"), [UNTOUCHED])).steps.get(UNTOUCHED)
            if stored is not None and stored == before:
                break
            before = stored
            await asyncio.sleep(0.1)
    return exchange


async def test_e4_an_untouched_chat_is_extended_at_every_replica_and_after_a_restart(stage: Stage, url: str) -> None:
    settings = {"store": url, "preset": "coding-agent", "floor": 3_000}
    replicas = [await stage.start(**settings), await stage.start(**settings)]
    grown = [await _asked(stage, replicas[i % 2], messages, url) for i, messages in enumerate(CHAT[:6])]
    assert [each.sent == each.given for each in grown] == [True] * 6
    assert [each.prefix for each in grown] == ["first", *["extended"] * 5]
    for app in replicas:
        await app.close(1)
    app = await stage.start(**settings)
    assert (await _asked(stage, app, CHAT[6], url)).prefix == "extended"
    again = await stage.start(**settings)
    assert (await _asked(stage, again, CHAT[6], url)).prefix == "extended"  # the same request once more
    other = await stage.start(**settings)
    assert (await _asked(stage, other, CHAT[7], url, model="other")).prefix == "checkpoint:replayed"  # the head differs


async def test_e4_what_is_seen_for_the_first_time_in_the_middle_is_first(stage: Stage, url: str) -> None:
    app = await stage.start(store=url, preset="coding-agent", floor=3_000)
    assert (await _asked(stage, app, CHAT[3], url)).prefix == "first"
    assert (await _asked(stage, app, CHAT[4], url)).prefix == "extended"


async def test_e4_where_the_store_does_not_answer_it_is_not_known(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"preset": "coding-agent", "floor": 3_000}
    one, two = await stage.start(**settings), await stage.start(**settings)
    assert (await stage.ask(one, CHAT[2], tools=None)).prefix == "first"

    async def no_memory(*_: object) -> None:
        raise StoreTrouble("no")

    monkeypatch.setattr(SqliteStore, "memory", no_memory)
    assert (await stage.ask(two, CHAT[3], tools=None)).prefix == "checkpoint:replayed"
    assert (await stage.ask(two, CHAT[4], tools=None)).prefix == "extended"  # this process has sent the one before


async def test_the_digests_of_many_requests_are_written_together_and_never_on_their_path(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []
    real = CachedStore.ask

    async def ask(self: CachedStore, operation: str, *given: object, waits: bool = True) -> object:
        asked.append((operation, waits))
        return await real(self, operation, *given, waits=waits)  # type: ignore[arg-type]

    monkeypatch.setattr(CachedStore, "ask", ask)
    app = await stage.start(preset="coding-agent", floor=3_000)
    for step in range(2):  # with the first one, owners are written, too
        asked.clear()
        named = [("x-narrows-conversation", f"{number}") for number in range(20)]
        await asyncio.gather(*(stage.ask(app, CHAT[step], name, tools=None) for name in named))
        await asyncio.sleep(0.3)
    await app.close(1)
    assert {waits for _, waits in asked} == {False}
    assert len(asked) < 15


async def test_m2_a_summary_that_a_new_process_wants_no_more_is_stale_though_nothing_else_is_decided(
    office: Office,
) -> None:
    session = requests(talk(24))
    first = await office.desk(preset="chat", model="gpt-5.4", **REAL)
    grown = await office.adopted(first, session, tools=None)
    await first.app.close(1)
    desk = await office.desk(**{**REAL, "preset": "coding-agent", "model": "gpt-5.4", "floor": 100_000})
    (after,) = await office.grow(desk, session[len(grown) : len(grown) + 1], tools=None)
    assert (summary_header(after), after.prefix) == ("stale:policy", "checkpoint:summary-stale")
    (later,) = await office.grow(desk, session[len(grown) + 1 : len(grown) + 2], tools=None)
    assert later.prefix == "extended"


async def test_r7_where_the_model_cannot_recall_what_is_hidden_that_is_said(stage: Stage) -> None:
    session, app = working(8, 60), await stage.start()
    for fields, warning in (({}, "no-recall"), ({"store": False}, None)):  # stored there, no tool of ours may be in it
        body = {**to_responses({"model": "m", "messages": session[:-1], "tools": TOOLS}), **fields}
        head = {"Authorization": "Bearer k"}
        async with stage.client.post(f"{app.base_url}/responses", json=body, headers=head) as reply:
            assert (reply.status, reply.headers["x-narrows-mode"]) == (200, "compacted")
            assert reply.headers.get("x-narrows-warning") == warning
