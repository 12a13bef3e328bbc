"""Marks that ask for the longer lifetime, over sockets: when, which bytes, and what replicas and restarts do."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from policies.money import lifetimes
from proxy.app import App
from proxy.lab.provider import Say, Send, Violation
from proxy.lab.provider.api import refusal
from tests.kernel.test_client_summaries import CLAUDE_ASKS, CLAUDE_BEGINS, TEXT, beginning
from tests.kit.apis import APIS
from tests.kit.counted import counted
from tests.kit.histories import Json
from tests.kit.stage import Stage, ends, working

MODEL = "claude-opus-5-5"
SESSION = working(24)
EPHEMERAL = {"type": "ephemeral"}
pytestmark = pytest.mark.usefixtures("patient")


def lifetimes_in(value: Any) -> list[str]:
    """What each mark in a request asks for; "" for the usual lifetime."""
    if isinstance(value, list):
        return [each for entry in value for each in lifetimes_in(entry)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"].get("ttl", "")] if "cache_control" in value else []
    return own + [each for name in value if name != "cache_control" for each in lifetimes_in(value[name])]


class Conversation:
    """A client of Messages that pauses; the clock of all is its own."""

    def __init__(self, stage: Stage, mark: dict[str, str] | None = EPHEMERAL) -> None:
        self.stage, self.now, self.mark = stage, 1_800_000_000.0, mark
        stage.clock = lambda: self.now
        stage.provider.clock = lambda: self.now

    async def ask(self, app: App, end: int, pause: float) -> set[str]:
        return await self.send(app, SESSION[:end], pause)

    async def send(self, app: App, messages: Sequence[Json], pause: float) -> set[str]:
        """The lifetimes that the marks of the request ask for, as it arrives upstream."""
        self.now += pause
        more: dict[str, Any] = {"cache_control": self.mark} if self.mark else {}
        body = APIS["anthropic_messages"].body(messages, model=MODEL, max_tokens=9_000, **more)
        head = {"Content-Type": "application/json", "x-api-key": "sk-k", "anthropic-version": "2023-06-01"}
        async with self.stage.client.post(f"{app.base_url}/messages", data=json.dumps(body), headers=head) as reply:
            assert reply.status == 200, await reply.text()
        return set(lifetimes_in(self.stage.provider.requests[-1].json))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pause is enough."""
    monkeypatch.setattr(lifetimes, "PRUDENCE", 0.1)


async def paused(conversation: Conversation, app: App, many: int = 6, pause: float = 400.0) -> set[str]:
    """So many requests in a row, and one behind a pause."""
    *before, last = ends(SESSION)[:many]
    for end in before:
        assert await conversation.ask(app, end, 10) <= {""}
    return await conversation.ask(app, last, pause)


async def test_p2_marks_of_ours_ask_for_an_hour_where_a_pause_has_paid_for_it(stage: Stage) -> None:
    conversation = Conversation(stage, mark=None)
    app = await stage.start()
    assert await paused(conversation, app) == {"1h"}
    assert stage.provider.requests[-1].usage.written_longer > 0  # type: ignore[union-attr]
    assert await conversation.ask(app, ends(SESSION)[6], 3_500) == {"1h"}
    usage = stage.provider.requests[-1].usage
    assert usage is not None
    assert usage.cached > 0


async def test_p2_marks_of_the_client_stay_as_they_are_unless_a_person_says_so(stage: Stage) -> None:
    conversation = Conversation(stage)
    assert await paused(conversation, await stage.start()) == {""}
    asked = Conversation(stage)
    app = await stage.start(mark_lifetime="auto", store=f"sqlite:///{stage.path}-auto")
    assert await paused(asked, app) == {"1h"}


@pytest.mark.parametrize("wish", ["usual", "own", "auto"])
async def test_p2_a_client_that_asks_for_an_hour_itself_gets_what_it_asks_for(stage: Stage, wish: str) -> None:
    app = await stage.start(mark_lifetime=wish)
    conversation = Conversation(stage, {**EPHEMERAL, "ttl": "1h"})
    for end in ends(SESSION)[:6]:
        assert await conversation.ask(app, end, 400) == {"1h"}


async def test_p2_a_replica_and_a_restart_go_on_with_the_lifetime_that_was_chosen(stage: Stage) -> None:
    conversation = Conversation(stage, mark=None)
    first, second = await stage.start(), await stage.start()
    assert await paused(conversation, first) == {"1h"}
    await first.close(1)
    assert await conversation.ask(second, ends(SESSION)[6], 1_000) == {"1h"}
    await second.close(1)
    assert await conversation.ask(await stage.start(), ends(SESSION)[7], 1_000) == {"1h"}


async def test_p2_the_same_request_again_asks_for_the_same(stage: Stage) -> None:
    conversation = Conversation(stage, mark=None)
    app = await stage.start()
    await paused(conversation, app)
    sent = stage.provider.requests[-1].body
    await conversation.ask(app, ends(SESSION)[5], 0)
    assert stage.provider.requests[-1].body == sent


async def test_what_an_upstream_refuses_is_sent_without_and_never_again(stage: Stage) -> None:
    def refuse(body: Any) -> Violation | None:
        is_longer = "1h" in lifetimes_in(body)
        return refusal("cache_control.ttl", "Extra inputs are not permitted") if is_longer else None

    stage.provider.refuse = refuse
    conversation = Conversation(stage)
    app = await stage.start(mark_lifetime="auto")
    assert await paused(conversation, app) == {""}
    assert "ttl" in stage.provider.requests[-2].body.decode()
    assert await conversation.ask(app, ends(SESSION)[6], 400) == {""}
    assert "ttl" not in stage.provider.requests[-2].body.decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "label"), [("system_changed", "system_changed"), ("no\nword", "other")])
async def test_why_a_cache_missed_is_counted_where_a_client_has_asked(
    stage: Stage, stream: bool, reason: str, label: str
) -> None:
    usage = {"input_tokens": 9, "output_tokens": 1}
    message = {"type": "message", "role": "assistant", "content": [], "usage": usage}
    message["diagnostics"] = {"cache_miss_reason": {"type": reason, "cache_missed_input_tokens": 7}}
    start = json.dumps({"type": "message_start", "message": message})
    event = f"event: message_start\ndata: {start}\n\n".encode()
    kind = "text/event-stream" if stream else "application/json"
    stage.provider.answer = lambda _: Send(
        200, event if stream else json.dumps(message).encode(), [("Content-Type", kind)]
    )
    conversation, app = Conversation(stage), await stage.start()
    await conversation.ask(app, 1, 0)
    assert counted(app.telemetry, "cache_misses_total", reason=label) == 1


async def test_p2_the_history_behind_a_summary_of_its_client_goes_on_with_the_lifetime(stage: Stage) -> None:
    conversation = Conversation(stage, EPHEMERAL)
    first, second = [await stage.start(mark_lifetime="auto") for _ in range(2)]
    assert await paused(conversation, first) == {"1h"}
    end = ends(SESSION)[6]
    history = [*SESSION[:end], {"role": "user", "content": CLAUDE_ASKS}]
    stage.provider.answer = lambda received: Say(TEXT)
    assert await conversation.send(first, history, 10) == {""}
    stage.provider.answer = None
    after = [*beginning(CLAUDE_BEGINS), *working(8)[2:]]
    after[2]["content"] += "\n" + "The words of a file that the client brings along. " * 400
    for app, end in ((second, 3), (first, 3), (first, 5), (first, 8)):
        assert await conversation.send(app, after[:end], 10) == {"1h"}, end
    other = [*after[:2], {**after[2], "content": after[2]["content"].replace("line 11", "line 12")}]
    assert await conversation.send(first, other, 10) == {""}
