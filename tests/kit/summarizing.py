"""What the tests of summaries share: a model on a real socket, a replica that asks it, and what is wanted of them."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import openai.resources.chat  # noqa: F401 - importing it takes a second, which is no part of a summary's time
import pytest

from policies.context import Want
from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, converse
from policies.model.summary_record import SummaryRecord
from policies.model.tokens import Counter
from proxy.addons.billing.addon import Billing
from proxy.config import Settings
from proxy.kernel.prepare import Holdout
from proxy.memory import Event, Key, Store, open_store
from proxy.memory.audit_log import AuditLog
from proxy.memory.conversation import Conversations
from proxy.memory.forgetting import ForgetRegistry
from proxy.summaries.endpoints import ModelRequest
from proxy.summaries.jobs import SummaryJob
from proxy.summaries.maker import SummaryMaker, SummaryWriter
from proxy.summaries.summarizer import Summarizer
from proxy.telemetry import Telemetry
from proxy.upstreams.price_book import PriceBook
from tests.kit.counted import counted
from tests.kit.histories import Json
from tests.kit.stage import body_of, working
from tests.kit.upstream import Asked, ScriptedUpstream, completion, json_answer

KEY = Key("local", "c1")
GOOD = """[2] assistant: Now step 0 of the plan. The parser reads one line after the other, and then it returns.
[2] call bash: {"command": "grep -rn thing_0 src"}
[4] assistant: Now step 1 of the plan. The parser reads one line after the other, and then it returns."""
"""A summary as it is used: the first two steps of every session here."""
SECRET = "sk-of-the-client"


@lru_cache
def counter() -> Counter:
    return Counter()


def conversation_of(messages: Sequence[Json]) -> Conversation:
    dialect = DIALECTS["openai_chat"]
    request = dialect.split(body_of(messages))
    assert request is not None
    return converse([dialect.read(request.raw(i), counter()) for i in range(len(request.spans))])


@lru_cache
def session(turns: int = 8) -> Conversation:
    return conversation_of(working(turns, 12))


def asking(**more: Any) -> ModelRequest:
    """A model is asked for a client."""
    auth = {"Authorization": f"Bearer {SECRET}"}
    return ModelRequest(**{"model": "gpt-4o", "auth": auth, "owner": "owner", **more})


def task(last: int = 4, conversation: Conversation | None = None, since: int = 0, **more: Any) -> SummaryJob:
    """A summary of the turns before `last` is wanted, the first message of a person apart; of those from `since` on
    where it extends the record `previous`."""
    conversation = conversation or session()
    blocks, ends = conversation.blocks, conversation.ends
    asks = {name: more.pop(name) for name in ("model", "owner") if name in more}
    extended = {name: more.pop(name) for name in ("previous", "generation") if name in more}
    first, start, end = (blocks[at].anchor for at in (ends[0], ends[since], ends[last] - 1))
    job = SummaryJob(
        key=KEY,
        conversation=conversation,
        want=Want(first, end, "originals", start, **extended),
        request=asking(**asks),
        count=counter(),
        policy="policy-1",
    )
    return replace(job, **more)


def beginnings(count: int) -> list[SummaryJob]:
    """As many wants that have nothing in common."""
    talks = [
        conversation_of([*working(1)[:1], {"role": "user", "content": f"This is number {n}."}, *working(4, 12)[2:]])
        for n in range(count)
    ]
    return [task(3, talk) for talk in talks]


@dataclass
class Model:
    """Gives each request the same answer, once it may; no bytes: it hangs up."""

    answer: bytes = field(default_factory=lambda: answer_with(GOOD))
    may: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    most: int = 0
    """How many it had at once."""
    upstream: ScriptedUpstream = field(init=False)

    def __post_init__(self) -> None:
        self.may.set()
        self.upstream = ScriptedUpstream(self._script)

    @property
    def calls(self) -> int:
        return len(self.upstream.seen)

    @property
    def prompts(self) -> list[str]:
        """The material that it received in each call, instructions apart."""
        return [json.loads(each.body)["messages"][-1]["content"] for each in self.upstream.seen]

    async def _script(self, _: Asked, writer: asyncio.StreamWriter) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.may.wait()
        finally:
            self.running -= 1
        if not self.answer:
            writer.transport.abort()
            return
        writer.write(self.answer)
        await writer.drain()


def answer_with(text: str, **more: Any) -> bytes:
    return json_answer(completion(text, **more))


@dataclass(frozen=True, slots=True)
class Replica:
    """One process' worth of it, with a store connection of its own."""

    summaries: SummaryMaker
    store: Store
    audit_log: AuditLog
    telemetry: Telemetry
    log: io.StringIO
    forgets: ForgetRegistry

    def count(self, metric: str, **labels: str) -> float:
        return counted(self.telemetry, f"{metric}_total", **labels)

    def outcomes(self, outcome: str) -> int:
        return int(self.count("summaries", outcome=outcome))

    def lines(self, event: str) -> list[Json]:
        found = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in found if line["event"] == event]

    async def record_of(self, wanted: SummaryJob) -> SummaryRecord:
        """The record that the job leaves."""
        self.summaries.start(wanted)
        await self.summaries.settled()
        return self.summaries.recent(wanted.key, wanted.want.first)[-1]

    async def events(self) -> list[Event]:
        """All that were noted here; none is noted afterwards."""
        await self.audit_log.close()
        return [event for _, event in await self.store.events(KEY.tenant, None, 1_000)]


@asynccontextmanager
async def replica(
    url: str, model: Model, wrap: Callable[[Store], Any] = lambda store: store, patience: float = 10, **settings: Any
) -> AsyncIterator[Replica]:
    """It ends whatever it started. `wrap` may stand before its store."""
    async with AsyncExitStack() as parts:
        log = io.StringIO()
        telemetry = Telemetry("info", "json", log)
        chosen = Settings(upstream=model.upstream.url, store=url, **{"summarizers": ({"model": "same"},), **settings})
        store = open_store(url, patience=patience)
        parts.push_async_callback(store.close)
        await store.open()
        audit_log = AuditLog(store, telemetry)
        parts.push_async_callback(audit_log.close)
        summarizer = Summarizer(chosen)
        parts.push_async_callback(summarizer.close)
        forgets = ForgetRegistry()
        billing = Billing(store, telemetry, forgets, Holdout(0, b""), chosen.preset, PriceBook(chosen).prices)
        parts.push_async_callback(billing.close)
        wrapped = cast(Store, wrap(store))
        forgets.register((conversations := Conversations()).forget)
        bills = [billing.summary]
        writer = SummaryWriter(chosen, summarizer, wrapped, audit_log, telemetry, conversations, billed=bills)
        summaries = SummaryMaker(writer, forgets)
        parts.push_async_callback(summaries.close)
        yield Replica(summaries, store, audit_log, telemetry, log, forgets)


@pytest.fixture(name="model")
async def model_of_a_test() -> AsyncIterator[Model]:
    made = Model()
    async with made.upstream:
        yield made


@pytest.fixture(name="url")
def file_of_a_test(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/narrows.db"


@pytest.fixture(name="one")
async def replica_of_a_test(url: str, model: Model) -> AsyncIterator[Replica]:
    async with replica(url, model) as made:
        yield made


class Faulty:
    """A store in which one operation fails so many times."""

    def __init__(self, store: Store, operation: str, failures: int, error: Exception) -> None:
        self._store = store
        self._operation = operation
        self._failures = failures
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return self._fails if name == self._operation else getattr(self._store, name)

    async def _fails(self, *given: Any) -> Any:
        if self._failures:
            self._failures -= 1
            raise self._error
        return await getattr(self._store, self._operation)(*given)
