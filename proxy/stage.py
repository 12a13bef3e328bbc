"""Where sessions are replayed: the built-in provider (or a real upstream), a Narrows before it, and what watches both.

Laws: everything is on loopback, on free ports, with a store of its own that is gone afterwards; no setting of the
machine has a say; of each run only the newest turn is kept, and that until it is forgotten.
"""

import os
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from policies.context import Prices, Want
from policies.conversation import Part
from policies.dialects import Reply, Usage
from policies.presets import PRESETS
from policies.prices import prices_for
from policies.quality import Need, needed
from policies.staleness import Spent, SummaryRecord
from policies.stubs import refs_named
from policies.summarize import summarize
from policies.tokens import Counter, encoding_for
from policies.tools import RECALL
from proxy.app import App
from proxy.compaction import Compactor, Prepared
from proxy.config import ConfigurationError, Settings
from proxy.forms import FORMS, read
from proxy.outgoing import Incoming
from proxy.prompts import PROMPTS
from proxy.provider import TURN_HEADER, Provider, Received, Say, rule_for, start
from proxy.provider.summarist import extract
from proxy.recorded import Session
from proxy.rolling import Waiting
from proxy.sizes import order_of
from proxy.store import Key, Store, open_store
from proxy.summaries import Summaries

_PATIENCE = 30.0
"""Seconds that the store may take: nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `narrows replay` was asked for."""

    prices: tuple[str, ...] = ()
    """Price tables, by model; each session's own where there is none."""
    cache: str = ""
    """prefix or breakpoint; by model where empty."""
    preset: str = Settings.model_fields["preset"].default
    concurrency: int = 1
    repeat: int = 1
    upstream: str = ""
    credential: str = ""
    text_protocol: bool = False
    refetch: float = 0.0
    """The share of the uses of hidden text at which the built-in provider's model recalls it first."""
    summary_model: str = ""
    """Who writes the summaries that the preset wants; the session's model where empty."""

    def tables(self, sessions: Sequence[Session]) -> Mapping[str, Sequence[Session]]:
        """The sessions that are replayed under each price table."""
        if self.prices:
            return dict.fromkeys(self.prices, sessions)
        return {session.model: [s for s in sessions if s.model == session.model] for session in sessions}


@dataclass(slots=True)
class Rounds:
    """What became of one request besides its last round: the usage of the others, and the recalls answered."""

    usage: list[Usage] = field(default_factory=list)
    answered: int = 0
    refused: int = 0
    """Recalls of what is not there."""


class Watching:
    """A Compactor that can be looked at: the newest request of each conversation, until it is forgotten."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self.preview = compactor.preview
        self.reply = compactor.reply
        self.record = compactor.record
        self.keep = compactor.keep
        self.newest: dict[str, Prepared] = {}
        """As it was sent first: what recalls add to it is in `rounds`."""
        self.rounds: dict[str, Rounds] = {}

    async def prepare(self, incoming: Incoming, waiting: Waiting | None = None) -> Prepared:
        """As the compactor does, and what it made is kept."""
        prepared = await self._compactor.prepare(incoming, waiting)
        self.newest[incoming.conversation or ""] = prepared
        self.rounds[incoming.conversation or ""] = Rounds()
        return prepared

    async def again(self, prepared: Prepared, reply: Reply, choice: int) -> Prepared:
        """As the compactor does; what the round before cost, and what is answered now, is noted."""
        following = await self._compactor.again(prepared, reply, choice)
        assert prepared.exchanged is not None
        rounds = self.rounds[prepared.exchanged.incoming.conversation or ""]
        rounds.usage.append(reply.usage or Usage(0, 0, 0, 0))
        answers = following.exchanged.answers if following.exchanged is not None else ()
        rounds.answered += sum(answer.found for answer in answers)
        rounds.refused += sum(not answer.found for answer in answers)
        return following

    def forget(self, run: str) -> None:
        """Let go of what was kept of a conversation."""
        self.newest.pop(run, None)
        self.rounds.pop(run, None)


class Player:
    """The model of the built-in provider: says what was recorded, but may recall first what it is about to use.

    Of the uses of hidden text it recalls a share that follows from the turn and the reference alone: the whole text, or
    where it has recalled that before and did not see enough, the lines that it needs. A turn whose recalls are answered
    is played as recorded, whatever is still out of sight.
    """

    MOST = 4
    """Recalls of one turn, all in one message."""

    def __init__(self, watching: Watching, refetch: float, count: Counter) -> None:
        self._watching = watching
        self._refetch = refetch
        self._count = count
        self._plays: dict[str, tuple[str, Sequence[Sequence[Part]]]] = {}
        self.received: dict[str, list[Received]] = {}
        """By credential: the requests of the newest turn."""

    def play(self, credential: str, run: str, session: Session, count: Counter) -> None:
        """What this credential is going to be answered."""
        if self._refetch:
            self._plays[credential] = (run, session.spoken(count))

    def __call__(self, received: Received) -> Say | None:
        """A summary where one is asked for, else the recalls of a turn; None for what was recorded."""
        if received.dialect and received.violation is None and (words := _words_asked(received)):
            return Say(extract(deque(_texts(received), 1)[0], words, self._count))
        credential, turn = received.credential, received.headers.get(TURN_HEADER, "")
        before = self.received.get(credential, [])
        is_round = bool(before) and before[-1].headers.get(TURN_HEADER) == turn
        self.received[credential] = [*(before if is_round else ()), received]
        if received.violation is not None or credential not in self._plays or not turn.isdecimal():
            return None
        run, answers = self._plays[credential]
        calls = self._calls(received, int(turn), run, answers[int(turn)])
        return Say(calls=calls) if calls and not _answers(received, calls[0]["id"]) else None

    def _calls(self, received: Received, turn: int, run: str, said: Sequence[Part]) -> list[dict[str, Any]]:
        prepared = self._watching.newest[run]
        if prepared.conversation is None or prepared.plan is None:
            return []
        uses = needed(prepared.conversation, prepared.plan.edits, said)
        named = refs_named(received.body.decode("utf-8", "replace"))  # what the model can know
        due = [need for need in uses if self._is_due(turn, need) and need.ref in named]
        return [_call(turn, at, need, _recalls(received, need)) for at, need in enumerate(due[: self.MOST])]

    def _is_due(self, turn: int, need: Need) -> bool:
        digest = sha256(f"{turn} {need.ref}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self._refetch * 2**64

    def forget(self, credential: str) -> None:
        """Let go of what was kept of a credential."""
        self._plays.pop(credential, None)
        self.received.pop(credential, None)


def _words_asked(received: Received) -> int:
    """How many words a summary may have that is asked for; 0 where none is."""
    instructions = next(_texts(received), "")
    before, _, after = PROMPTS["compaction"].text.partition("{words}")
    if not (instructions.startswith(before) and instructions.endswith(after)):
        return 0
    words = instructions[len(before) : len(instructions) - len(after)]
    return int(words) if words.isdecimal() else 0


def _texts(received: Received) -> Iterator[str]:
    """What a request says, the text that leads it first."""
    if isinstance(lead := received.json.get(FORMS[received.dialect].lead), str):
        yield lead
    yield from (part.text for part in _parts(received))


def _parts(received: Received) -> Iterator[Part]:
    """What the history of a request says."""
    history = received.json.get(FORMS[received.dialect].history)
    entries = [{"role": "user", "content": history}] if isinstance(history, str) else history or ()
    return (part for entry in entries for part in read(received.dialect, entry).parts)


def _recalls(received: Received, need: Need) -> bool:
    """Whether the hidden text was recalled before, as far as the request shows."""
    return any(part.kind == "call" and part.tool == RECALL and need.ref in part.text for part in _parts(received))


def _call(turn: int, at: int, need: Need, again: bool) -> dict[str, Any]:
    arguments = {"ref": need.ref, "part": f"find {_pattern(need.items)}"} if again else {"ref": need.ref}
    function = {"name": RECALL, "arguments": orjson.dumps(arguments).decode()}
    return {"id": f"recall_{turn}_{at}", "type": "function", "function": function}


def _pattern(items: Sequence[str]) -> str:
    """Finds the lines in which the first of these begin; short, because of a long pattern only the start counts."""
    return "|".join(re.escape(item.strip().split("\n")[0][:60]) for item in items[:2])


def _answers(received: Received, call_id: str) -> bool:
    """Whether the request brings what this call asked for."""
    return any(part.kind == "result" and part.call_id == call_id for part in _parts(received))


@dataclass(frozen=True, slots=True)
class Summed:
    """What there is of a conversation's summaries: the newest of them, those rejected too, and what all took."""

    records: Sequence[SummaryRecord] = ()
    spent: Spent = field(default_factory=Spent)


class Desk:
    """Where summaries are made, and kept: in a store of its own, over a second connection."""

    def __init__(self, summaries: Summaries, store: Store, prices: Prices, batch: int) -> None:
        self._summaries = summaries
        self._store = store
        self.prices = prices
        """Those of the model that writes them."""
        self.batch = batch
        """So many tokens have to go for each."""

    async def summed(self, key: Key) -> Summed:
        """What there is once nothing is being made any more."""
        await self._summaries.settled()
        spent = await self._store.spent(key)
        return Summed(await self._store.summaries(key), spent.get("compaction", Spent()))

    def failed(self, key: Key, want: Want) -> bool:
        """Whether nothing came of what was wanted."""
        return self._summaries.state(key, want.first) == "failed"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where sessions are replayed: a Narrows, what watches it, and how its model bills."""

    base_url: str
    watching: Watching
    provider: Provider | None
    """The built-in one; None where the upstream is a real one."""
    player: Player | None
    """What speaks for it."""
    desk: Desk | None
    """None where the preset wants no summaries."""
    prices: Prices
    model: str
    count: Counter
    refetch: float = 0.0
    credential: str = ""
    """For a real upstream; else each run has its own."""
    preset: str = ""
    order: tuple[str, ...] = ()
    """The names of the preset's policies."""

    @property
    def marks(self) -> bool:
        """Whether the client of a session sets cache marks: where the cache knows no others."""
        rule = rule_for(self.prices.model, self.prices)
        return bool(rule.mark) and not rule.endings

    def key(self, run: str) -> str:
        """The credential of a run."""
        return self.credential or run

    def play(self, session: Session, run: str) -> None:
        """Have the built-in provider answer this run as the session was answered."""
        if self.provider is not None and self.player is not None:
            self.provider.play(self.key(run), session.messages, session.dialect)
            self.player.play(self.key(run), run, session, self.count)

    def received(self, run: str) -> Sequence[Received]:
        """The requests of a run's newest turn, as the built-in provider got them."""
        return self.player.received.get(self.key(run), ()) if self.player is not None else ()

    def forget(self, run: str) -> None:
        """Let go of what was kept of a run."""
        self.watching.forget(run)
        if self.player is not None:
            self.player.forget(self.key(run))


class _OwnSettings(Settings):
    """Settings that no environment and no file have a say in: a replay comes out the same everywhere."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What the replay says, alone."""
        return (init_settings,)


def _settings(**chosen: Any) -> Settings:
    try:
        return _OwnSettings(port=0, log_level="error", **chosen)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigurationError("; ".join(faults)) from error


@contextmanager
def _directly() -> Iterator[None]:
    """While Narrows starts, which is when it looks: no proxy of the environment stands before the built-in provider."""
    kept = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "*"
    try:
        yield
    finally:
        if kept is None:
            del os.environ["no_proxy"]
        else:
            os.environ["no_proxy"] = kept


@asynccontextmanager
async def staged(model: str, options: Options) -> AsyncIterator[Stage]:
    """A provider (or a real upstream) and a Narrows in front of it, on free ports, with a store of its own."""
    overrides = {model: {"breakpoints": options.cache == "breakpoint"}} if options.cache else {}
    prices = prices_for(model, overrides)
    count = Counter(encoding_for(model))
    async with AsyncExitStack() as parts:
        folder = parts.enter_context(TemporaryDirectory(prefix="narrows-"))
        provider = None
        upstream = options.upstream
        if not upstream:
            provider = Provider(lambda name: prices_for(name, overrides), count, keep=1)
            upstream = (await parts.enter_async_context(await start(provider))).url
        settings = _settings(
            upstream=upstream,
            store=f"sqlite:///{folder}/replay.db",
            preset=options.preset,
            models=overrides,
            text_protocol=options.text_protocol,
            summarizers=({"model": options.summary_model},),
        )
        with _directly() if provider is not None else nullcontext():
            app = await parts.enter_async_context(await App.start(settings, Watching, _PATIENCE))
        watching = app.compaction
        assert isinstance(watching, Watching)
        player = None
        if provider is not None:
            provider.answer = player = Player(watching, options.refetch, count)
        desk = await _desk(app, options.preset, prices_for(options.summary_model or model, overrides), parts)
        order = order_of(PRESETS[options.preset].policies)
        yield Stage(
            app.base_url,
            watching,
            provider,
            player,
            desk,
            prices,
            model,
            count,
            options.refetch,
            options.credential,
            options.preset,
            order,
        )


async def _desk(app: App, preset: str, prices: Prices, parts: AsyncExitStack) -> Desk | None:
    policies = (policy for policy in PRESETS[preset].policies if isinstance(policy, partial))
    batch = next((policy.keywords["batch"] for policy in policies if policy.func is summarize), 0)
    if app.summaries is None or not batch:
        return None
    store = open_store(app.settings.store, patience=_PATIENCE)
    parts.push_async_callback(store.close)
    await store.open()
    return Desk(app.summaries, store, prices, batch)
