"""Recorded sessions, turn by turn through the real proxy, with an honest bill at the end.

A session with N assistant turns is N requests, each the history before one of them. They go over real sockets to a real
Narrows, and from there to the built-in provider, which plays the recorded turns back and bills by its prompt cache. What
doing nothing would have cost comes from the same arithmetic on the requests as the client sent them.

Laws
  Each session and each repeat has a credential, and so a conversation and a cache, of its own.
  A change of the prefix that the reply does not declare is counted against us; so is every request the provider rejects.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import orjson

from policies.context import Prices
from policies.conversation import converse
from policies.dialects import DIALECTS, Usage
from policies.edits import Edit
from policies.pipeline import Plan
from policies.prices import prices_for
from policies.quality import Sight, look, sight
from policies.tokens import Counter, encoding_for
from proxy.app import App
from proxy.compaction import Compactor, Incoming, Prepared
from proxy.config import Settings
from proxy.provider import ANTHROPIC, TURN_HEADER, PromptCache, PromptReader, Provider, rule_for, start

Json = Mapping[str, Any]
_MARK = {"cache_control": {"type": "ephemeral"}}


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded session in the form of chat completions."""

    name: str
    model: str
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]

    @property
    def turns(self) -> list[int]:
        """Where the assistant messages stand: the answers of its requests."""
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]


def load(path: Path) -> Session:
    """A session from its file. Raises ValueError, which says what the file must hold."""
    try:
        found = json.loads(path.read_bytes())
        messages = tuple(found["messages"])
        if not any(message["role"] == "assistant" for message in messages):
            raise ValueError("it has no assistant message, so no request can be replayed")
        return Session(path.stem, str(found.get("model") or "unknown"), messages, tuple(found.get("tools") or ()))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a session: it needs {{'messages': [...]}} ({error!r})") from error


def chained(sessions: Sequence[Session]) -> Session:
    """The sessions as one conversation: the next task given where the last one ended."""
    first = sessions[0]
    messages = list(first.messages)
    for session in sessions[1:]:
        messages += [message for message in session.messages if message["role"] not in ("system", "developer")]
    return Session("+".join(s.name for s in sessions), first.model, tuple(messages), first.tools)


def requests(session: Session, model: str, marks: bool) -> Iterator[dict[str, Any]]:
    """The bodies that the session's client sent; with `marks` it marks the system text and its newest message."""
    for end in session.turns:
        messages = [dict(message) for message in session.messages[:end]]
        if marks:
            for message in (messages[0], messages[-1]):
                message["content"] = _marked(message.get("content"))
        body: dict[str, Any] = {"model": model, "messages": messages}
        if session.tools:
            body["tools"] = list(session.tools)
        yield body | {"stream": True, "stream_options": {"include_usage": True}}


def _marked(content: Any) -> Any:
    if isinstance(content, str) and content:
        return [{"type": "text", "text": content, **_MARK}]
    if isinstance(content, list) and content and content[-1].get("type") == "text":
        return [*content[:-1], {**content[-1], **_MARK}]
    return content


@dataclass
class Bill:
    """What requests cost, by what the provider counted. Money in dollars."""

    prices: Prices
    input: float = 0.0
    output: float = 0.0
    tokens: int = 0
    cached: int = 0
    written: int = 0
    peak: int = 0

    def add(self, usage: Usage) -> None:
        """One more request. What is written at a mark costs the write price; what is neither is plain input."""
        prices, million = self.prices, 1e6
        write = prices.write if prices.breakpoints else 1.0
        plain = usage.prompt - usage.cached - usage.written
        units = plain + usage.cached * prices.read + usage.written * write
        factor = prices.factor(usage.prompt)
        self.input += units * prices.input * factor / million
        self.output += usage.completion * prices.output / million
        self.tokens += usage.prompt
        self.cached += usage.cached
        self.written += usage.written
        self.peak = max(self.peak, usage.prompt)

    @property
    def total(self) -> float:
        """Input and output."""
        return self.input + self.output


@dataclass
class Report:
    """What became of one session."""

    name: str
    model: str
    bill: Bill
    undone: Bill
    """The bill of doing nothing."""
    requests: int = 0
    rejected: int = 0
    undeclared: int = 0
    failed_open: int = 0
    prefixes: dict[str, int] = field(default_factory=dict)
    given_up: int = 0
    """Tokens that were in the provider's cache and had to be sent anew because of us."""
    worst: float = 0.0
    """The highest ratio of the bill so far to that of doing nothing so far, at any request."""
    seen: Sight = field(default_factory=sight)
    protocol: str = "tools"
    seconds: list[float] = field(default_factory=list)
    added_ms: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The input side of the bill, against doing nothing."""
        return self.bill.input / self.undone.input if self.undone.input else 1.0

    @property
    def checkpoints(self) -> int:
        """Declared rewrites that were not tail cuts."""
        return sum(times for word, times in self.prefixes.items() if word.startswith("checkpoint"))

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        bills = {"with": self.bill, "without": self.undone}
        sights = {"all": self.seen.all, "rare": self.seen.rare, "quoted": self.seen.quoted}
        return {
            "session": self.name,
            "prices": self.model,
            "protocol": self.protocol,
            "requests": self.requests,
            "checkpoints": self.checkpoints,
            "prefix": self.prefixes,
            "cached_tokens_given_up": self.given_up,
            "tokens_sent": {name: bill.tokens for name, bill in bills.items()},
            "peak_context": {name: bill.peak for name, bill in bills.items()},
            "input_bill": {name: round(bill.input, 6) for name, bill in bills.items()}
            | {"ratio": round(self.ratio, 4)},
            "whole_bill": {name: round(bill.total, 6) for name, bill in bills.items()},
            "worst_ratio_at_any_stop": round(self.worst, 4),
            "validity_errors": self.rejected,
            "undeclared_prefix_changes": self.undeclared,
            "failed_open": self.failed_open,
            "used_by_later_turns": {
                name: {
                    "used": tally.used,
                    "visible": tally.visible,
                    "recoverable_by_running_again": tally.recoverable,
                    "lost": tally.lost,
                    "share_visible": round(tally.share, 4),
                }
                for name, tally in sights.items()
            },
        }


class Watching:
    """A Compactor whose plans can be looked at: the newest one of each credential."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self.reply = compactor.reply
        self.record = compactor.record
        self.plans: dict[str, Plan] = {}

    async def prepare(self, incoming: Incoming) -> Prepared:
        """As the compactor does, and the plan is kept."""
        prepared = await self._compactor.prepare(incoming)
        if prepared.plan is not None:
            self.plans[incoming.credential] = prepared.plan
        return prepared


@dataclass(frozen=True, slots=True)
class Stage:
    """Where sessions are replayed: a Narrows, what watches it, and how its model bills."""

    base_url: str
    watching: Watching
    provider: Provider | None
    """The built-in one; None where the upstream is a real one."""
    prices: Prices
    model: str
    count: Counter
    credential: str = ""
    """For a real upstream; else each run has its own."""

    @property
    def marks(self) -> bool:
        """Whether the client of a session sets cache marks: where the cache knows no others."""
        return self.prices.breakpoints and rule_for(self.prices.model, self.prices) is ANTHROPIC


async def replay(
    session: Session, run: str, stage: Stage, http: aiohttp.ClientSession, progress: Callable[[], None]
) -> Report:
    """Every request of the session, in order; what was in sight is looked at when all is done."""
    report = Report(session.name, stage.model, Bill(stage.prices), Bill(stage.prices))
    accounting = _Accounting(stage, run)
    key = stage.credential or run
    if stage.provider is not None:
        stage.provider.play(key, session.messages)
    edits: list[Sequence[Edit]] = []
    for turn, body in enumerate(requests(session, stage.model, stage.marks)):
        began = time.perf_counter()
        headers = {"Authorization": f"Bearer {key}", TURN_HEADER: str(turn), "x-narrows-conversation": run}
        url = f"{stage.base_url}/chat/completions"
        async with http.post(url, data=orjson.dumps(body), headers=headers) as reply:
            text = await reply.read()
        report.seconds.append(time.perf_counter() - began)
        report.added_ms.append(float(reply.headers.get("x-narrows-ms", 0)))
        accounting.settle(report, body, reply.status, reply.headers, text)
        edits.append(stage.watching.plans[key].edits if key in stage.watching.plans else ())
        progress()
    _look(session, edits, stage.count, report)
    return report


def _look(session: Session, edits: Sequence[Sequence[Edit]], count: Counter, report: Report) -> None:
    messages = [DIALECTS["openai_chat"].read(orjson.dumps(message), count) for message in session.messages]
    conversation = converse(messages)
    report.protocol = "tools" if any(block.kind == "call" for block in conversation.blocks) else "text"
    for turn, changes in enumerate(edits):
        look(conversation, turn, changes, report.seen)


class _Accounting:
    """The two bills of one run, request by request, and what became of the prefix."""

    def __init__(self, stage: Stage, run: str) -> None:
        self._stage = stage
        self._run = run
        self._read = PromptReader(stage.count)
        self._cache = PromptCache(stage.count)
        self._rule = rule_for(stage.prices.model, stage.prices)
        self._before: tuple[bytes, ...] = ()
        self._sent_before = 0

    def settle(self, report: Report, body: Json, status: int, headers: Mapping[str, str], text: bytes) -> None:
        """Enter one request in the report."""
        report.requests += 1
        usage = usage_of(text) if status == 200 else None
        if usage is None:
            report.rejected += 1
            return
        undone = self._cache.charge(self._run, self._read(body), self._rule)
        report.undone.add(Usage(undone.prompt, undone.cached, undone.written, usage.completion))
        report.bill.add(usage)
        report.worst = max(report.worst, report.ratio)
        word = headers.get("x-narrows-prefix", "none")
        report.prefixes[word] = report.prefixes.get(word, 0) + 1
        report.failed_open += headers.get("x-narrows-mode") == "failed-open"
        self._compare(report, word)

    def _compare(self, report: Report, word: str) -> None:
        """The request as the provider got it against the one before: extended, or declared."""
        sent = self._newest()
        if sent is None:
            return
        prompt = self._read(sent)
        chain = prompt.chain("")
        shared = sum(1 for old, new in zip(self._before, chain, strict=False) if old == new)
        if shared < len(self._before):
            report.given_up += self._sent_before - prompt.ends[max(shared - 1, 0)]
            report.undeclared += word in ("first", "extended", "none")
        self._before, self._sent_before = chain, prompt.tokens

    def _newest(self) -> Json | None:
        provider = self._stage.provider
        if provider is None:
            return None
        mine = (r for r in reversed(provider.requests) if r.credential == self._run)
        newest = next(mine, None)
        return newest.json if newest is not None else None


def usage_of(stream: bytes) -> Usage | None:
    """The usage that a stream of chunks ends with."""
    reader = DIALECTS["openai_chat"].reply()
    for event in stream.split(b"\n\n"):
        reader.feed(event)
    return reader.usage


@dataclass(frozen=True, slots=True)
class Options:
    """What `narrows replay` was asked for."""

    prices: tuple[str, ...] = ()
    cache: str = ""
    """prefix or breakpoint; by model where empty."""
    preset: str = "coding-agent"
    concurrency: int = 1
    repeat: int = 1
    upstream: str = ""
    credential: str = ""
    text_protocol: bool = False


async def replay_all(
    sessions: Sequence[Session], options: Options, progress: Callable[[], None] = lambda: None
) -> list[Report]:
    """Every session under every price table, `repeat` times, `concurrency` at once."""
    reports: list[Report] = []
    for model in options.prices or (sessions[0].model,):
        async with staged(model, options) as stage:
            gate = asyncio.Semaphore(options.concurrency)
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:

                async def one(
                    session: Session, run: str, stage: Stage = stage, http: aiohttp.ClientSession = http
                ) -> Report:
                    async with gate:
                        return await replay(session, run, stage, http, progress)

                runs = [(session, f"{session.name}-{n}") for n in range(options.repeat) for session in sessions]
                reports += await asyncio.gather(*(one(session, run) for session, run in runs))
    return reports


@asynccontextmanager
async def staged(model: str, options: Options) -> AsyncIterator[Stage]:
    """A provider (or a real upstream) and a Narrows in front of it, on free ports, with a store of its own."""
    overrides = {model: {"breakpoints": options.cache == "breakpoint"}} if options.cache else {}
    prices = prices_for(model, overrides)
    count = Counter(encoding_for(model))
    async with AsyncExitStack() as parts:
        folder = parts.enter_context(TemporaryDirectory(prefix="narrows-"))
        provider = None if options.upstream else Provider(lambda name: prices_for(name, overrides), count)
        if provider is not None:
            running = await parts.enter_async_context(await start(provider))
        settings = Settings(
            upstream=options.upstream or running.url,
            port=0,
            store=f"sqlite:///{folder}/replay.db",
            preset=options.preset,
            models=overrides,
            text_protocol=options.text_protocol,
            log_level="error",
        )
        app = await parts.enter_async_context(await App.start(settings, watch=Watching))
        watching = app.compaction
        assert isinstance(watching, Watching)
        yield Stage(app.base_url, watching, provider, prices, model, count, options.credential)
