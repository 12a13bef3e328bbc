"""The planner alone: bytes in, a plan out, and nothing that takes effect; over a real store, without sockets."""

import io
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from proxy.config import Settings
from proxy.identity.who import Identity
from proxy.kernel import plan as planning
from proxy.kernel.cold import ColdProcess
from proxy.kernel.plan import Planner, PlanRuns, prefix_outcome, reply_headers, step_record
from proxy.kernel.understand import Assembler, Learned, RequestParser, Understanding
from proxy.lab import sessions
from proxy.memory import Store, open_store
from proxy.memory.cached import CachedStore, StoreWriter
from proxy.memory.conversation import Conversations
from proxy.memory.forgetting import ForgetRegistry
from proxy.requests import ClientRequest, PlannedRequest, RequestOptions
from proxy.telemetry import Telemetry
from proxy.upstreams.price_book import PriceBook
from tests.kit.stage import body_of
from tests.kit.talk import says, user

SESSION = sessions.load("long_day")
ENDS = [i for i, message in enumerate(SESSION["messages"]) if message["role"] == "assistant"]
NOW = 1_700_000_000.0


class NoWriters:
    """Background writers that want nothing and have written nothing."""

    async def before_plan(self, context: Any, plan_state: Any, memory: Any) -> tuple[Any, Any]:
        return context, memory


class Bench:
    """A planner on a store, at a time that the test sets."""

    def __init__(self, store: CachedStore, **settings: Any) -> None:
        self.now = NOW
        self.store, self.writer = store, StoreWriter(store)
        own = Settings(upstream="http://127.0.0.1:1/v1", **settings)
        here = ColdProcess(lambda *_: None, is_on=False)
        self.parser, self.book, self.row = RequestParser(store.conversations), PriceBook(own), own.upstream_rows[0]
        self.learned, writers = Learned(own, lambda: self.now), cast(Any, NoWriters())
        assembler = Assembler(own, self.book, self.learned)
        understanding = Understanding(self.parser, store, assembler, self.book, self.learned)
        self.planner = Planner(own, understanding, writers, lambda: self.now, PlanRuns(here, own.planning_timeout))

    async def plan(self, turn: int, **fields: Any) -> PlannedRequest:
        """The plan of a recorded request."""
        planned = await self.planner.plan(request(turn, **fields))
        assert planned is not None
        return planned

    def send(self, planned: PlannedRequest) -> str:
        """Remember a plan as one that was sent; what became of the prefix."""
        record = step_record(planned, self.now)
        context, live = planned.context, planned.context.live
        word = prefix_outcome(planned, record)
        if planned.is_quiet:
            self.writer.note_sent(live, context.conversation, record)
        else:
            step = (context.fingerprint, context.conversation, planned.plan.state, record)
            live.add_planned(*step)
            self.store.conversations.settle(live)
            self.writer.remember(live, *step)
        return word


def on(backend: Store) -> CachedStore:
    """A store as a process uses it that has served nothing."""
    return CachedStore(backend, Telemetry(stream=io.StringIO()), ForgetRegistry(), Conversations(), 5.0)


def sender(tenant: str) -> Identity:
    return Identity("", tenant, "")


def request(turn: int, **fields: Any) -> ClientRequest:
    body = json.dumps({**SESSION, "messages": SESSION["messages"][: ENDS[turn]]}).encode()
    return replace(ClientRequest("openai_chat", body, sender("local"), None, RequestOptions("on")), **fields)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[CachedStore]:
    backend = open_store(f"sqlite:///{tmp_path / 'narrows.db'}", patience=5.0)
    await backend.open()
    cached = on(backend)
    yield cached
    await cached.close()
    await backend.close()


async def test_a_conversation_is_planned_step_by_step_where_it_was_left_off(store: CachedStore) -> None:
    bench, words, was_quiet = Bench(store), [], True
    for turn in range(len(ENDS)):
        planned = await bench.plan(turn)
        assert (planned.plan_state is None) == was_quiet
        was_quiet = planned.is_quiet
        words.append(bench.send(planned))
    assert words[0] == "first"
    assert set(words) <= {"first", "extended", "tail-cut"} | {word for word in words if word.startswith("checkpoint:")}
    assert planned.plan.edits
    assert planned.tokens_sent < planned.tokens_received


async def test_what_an_upstream_lists_is_part_of_the_configuration_that_decisions_follow_from(
    store: CachedStore,
) -> None:
    bench, sent = (
        Bench(store),
        ClientRequest("openai_chat", b"", sender("local"), None, RequestOptions("on"), upstream="default"),
    )
    bodies = [request(turn).body for turn in (2, 2, 2)]
    seen = []
    for body, window in zip(bodies, (None, 9_000, 9_000), strict=True):
        if window is not None:
            bench.book.take_list(bench.row, {SESSION["model"]: {"window": window}})
        planned = await bench.planner.plan(replace(sent, body=body))
        assert planned is not None
        assert window is None or planned.context.plan_settings.prices.window == window
        seen.append(planned.context.fingerprint)
    assert seen[0] != seen[1] == seen[2]


async def test_e1_a_history_that_is_new_here_is_planned_in_a_thread_and_goes_on_without(
    store: CachedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    real = planning.plan_and_render

    def noted(*work: Any) -> Any:
        threads.append("loop" if threading.current_thread() is threading.main_thread() else "thread")
        return real(*work)

    monkeypatch.setattr(planning, "plan_and_render", noted)
    first, last = next(n for n, end in enumerate(ENDS) if end > 160), len(ENDS)
    for _ in range(2):  # the second one finds in the store what was decided, and knows nothing of the texts
        bench = Bench(store)
        threads.clear()
        for turn in range(first, min(last, first + 4)):
            monkeypatch.setattr("proxy.kernel.plan._NEWEST_BYTES", 10**9)
            bench.send(await bench.plan(turn))
        assert threads == ["thread", "loop", "loop", "loop"]
        store.conversations = Conversations()


async def test_e2_the_same_long_history_again_is_planned_from_its_last_step(store: CachedStore) -> None:
    bench = Bench(store)  # its upstream refuses all of them, so nothing is known to be sent
    first, again = [await bench.plan(len(ENDS) - 1) for _ in range(2)]
    assert first.plan_state is None
    assert again.plan_state is not None
    assert again.plan_state.step == len(ENDS) - 1
    assert (again.plan.edits, again.plan.reason) == (first.plan.edits, first.plan.reason)


async def test_x11_of_a_large_request_nothing_stays_before_its_credential_was_accepted(store: CachedStore) -> None:
    bench = Bench(store)
    parser, large = bench.parser, request(len(ENDS) - 1, is_accepted=False)
    kind = "openai_chat", "local", None, False
    padded = replace(large, body=large.body + b" " * 2**20)
    for each in (padded, padded):
        planned = await bench.planner.plan(each)
        assert planned is not None
        assert store.conversations.find(kind, each.body) == (None, False)
    for _ in range(2):
        parser.keep("openai_chat", planned.context.received, "local", None)
    branch, is_extended = store.conversations.find(kind, padded.body)
    assert branch is not None
    assert is_extended
    assert branch.content is planned.context.received
    assert store.conversations.of(branch.key).branches == [branch]


async def test_a_request_of_one_step_is_planned_here_however_long_it_is(store: CachedStore) -> None:
    """There is nothing to replay: another process would only get a copy of it."""
    bench, asked = Bench(store), list[int]()

    class Asked(ColdProcess):
        async def plan(self, *work: Any) -> None:
            asked.append(work[2].steps)

    bench.planner.runs._cold = Asked(lambda *_: None)
    for messages in ([user("word " * 100_000)], [user("word " * 100_000), says("yes"), user("on")]):
        assert await bench.planner.plan(request(0, body=body_of(messages, model="gpt-5.4"))) is not None
    assert asked == [2]


async def test_s1_another_planner_comes_to_the_same_plan_from_the_last_request_alone(store: CachedStore) -> None:
    stepwise = Bench(store)
    for turn in range(len(ENDS)):
        planned = await stepwise.plan(turn)
        stepwise.send(planned)
    alone = await Bench(on(open_store("sqlite:///"))).plan(len(ENDS) - 1)
    assert alone.plan.edits == planned.plan.edits
    assert alone.rendering.messages == planned.rendering.messages


@pytest.mark.parametrize("body", [b"", b"[]", b'{"messages": []}', b'{"model": "m", "messages": [1]}'])
async def test_c1_what_is_no_request_is_not_planned(store: CachedStore, body: bytes) -> None:
    assert await Bench(store).planner.plan(request(0, body=body)) is None


async def test_c3_a_pause_longer_than_the_cache_lives_makes_it_cold(store: CachedStore) -> None:
    bench = Bench(store, cold_seconds=600)
    for turn in range(len(ENDS) - 1):
        bench.send(await bench.plan(turn))
    assert not (await bench.plan(len(ENDS) - 1)).context.plan_settings.life.is_cold
    bench.now += 601
    assert (await bench.plan(len(ENDS) - 1)).context.plan_settings.life.is_cold


async def test_x5_tenants_and_apis_have_conversations_of_their_own(store: CachedStore) -> None:
    bench = Bench(store)
    ours, theirs = [(await bench.plan(2, sender=sender(tenant))).context.key for tenant in ("ours", "theirs")]
    assert ours.conversation == theirs.conversation
    assert ours != theirs
    named = await bench.plan(2, conversation="mine")
    assert reply_headers(named, "first")["x-narrows-conversation"] == "mine"


async def test_calibration_moves_what_is_reported_and_no_plan(store: CachedStore) -> None:
    bench = Bench(store)
    before = await bench.plan(len(ENDS) - 1)
    bench.learned.calibrate(before, before.tokens_sent, round(before.tokens_sent * 1.3))
    after = await bench.plan(len(ENDS) - 1)
    assert after.plan.edits == before.plan.edits
    first, second = (int(reply_headers(each, "x")["x-narrows-tokens-after"]) for each in (before, after))
    assert second == pytest.approx(first * 1.3, rel=0.01)


async def test_a_configuration_that_decides_otherwise_continues_nothing(store: CachedStore) -> None:
    bench, other = Bench(store), Bench(store, preset="gentle")
    last = len(ENDS) - 1
    bench.send(await bench.plan(last - 1))
    assert (await bench.plan(last)).plan_state is not None
    assert (await other.plan(last)).plan_state is None


async def test_a_request_is_planned_by_its_own_aim_and_size_else_by_those_of_the_settings(store: CachedStore) -> None:
    bench = Bench(store, aim="context", context_tokens=20_000)
    usual = (await bench.plan(3)).context
    chosen = (await bench.plan(3, options=RequestOptions("on", aim="bill", context_tokens=9_000))).context
    assert (usual.plan_settings.aim, usual.plan_settings.budget.high) == ("context", 20_000)
    assert (chosen.plan_settings.aim, chosen.plan_settings.budget.high) == ("bill", 9_000)
    by_preset = (await Bench(store).plan(3)).context
    assert by_preset.plan_settings.aim == by_preset.preset.aim
    assert (await Bench(store, aim="bill").plan(3)).context.fingerprint == by_preset.fingerprint
    assert len({usual.fingerprint, chosen.fingerprint, by_preset.fingerprint}) == 3
    only_the_aim = (await bench.plan(3, options=RequestOptions("on", aim="bill"))).context
    assert only_the_aim.fingerprint != usual.fingerprint
