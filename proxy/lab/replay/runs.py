"""Recorded sessions, turn by turn through the real proxy, with an honest bill at the end.

The requests of a session go over real sockets to a real Narrows, and from there to the built-in provider, which plays
the recorded turns back and bills by its prompt cache. What doing nothing would have cost comes from the same arithmetic
on the requests as the client sent them.

Laws
  Each session and each repeat has a conversation, and (but for a real upstream) a credential and a cache, of its own.
  A change of the prefix that the reply does not declare is counted against us; so is every request without an answer.
  A recall makes one more request of a turn: it is billed, and has to begin with all of the one before.
  A summary is there one turn after it was wanted, at the earliest. Each call for one is billed, whatever came of it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import aiohttp
import orjson

from policies.dialects import DIALECTS
from policies.model.conversation import Conversation
from policies.model.edits import Edit
from policies.model.tokens import Counter
from policies.money.prices import Usage
from proxy.lab.breakdown import weighed
from proxy.lab.client_apis import FORMS, newest_reply
from proxy.lab.provider import APIS, TURN_HEADER, PromptCache, PromptReader, rule_for
from proxy.lab.quality import look
from proxy.lab.replay.bills import Answered, Bill, Report, Summaries, joined
from proxy.lab.replay.player import Rounds
from proxy.lab.replay.recorded import Json, Session, held, requests
from proxy.lab.replay.stage import Options, Stage, Summed, staged
from proxy.requests import PlannedRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for a request; without `usage` it is `refusal` that was said."""

    status: int
    headers: Mapping[str, str]
    usage: Usage | None
    refusal: str = ""


Ask = Callable[[Json, Mapping[str, str]], Awaitable[Reply]]
"""A client: sends one body with these headers."""
Progress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request as the model first read it; no conversation where it went as the client sent it."""

    conversation: Conversation | None = None
    edits: Sequence[Edit] = ()
    whole: int = 0
    """Tokens of what the client sent."""
    tool: int = 0
    """Tokens of the recall tool."""


async def replay(session: Session, run: str, stage: Stage, ask: Ask, progress: Progress) -> Report:
    """Every request of the session, in order, and what was in sight."""
    return await _sighted(stage, session, *await _driven(session, run, stage, ask, progress))


async def _driven(
    session: Session, run: str, stage: Stage, ask: Ask, progress: Progress
) -> tuple[Report, list[_Asked]]:
    """Every request of the session, in order, as each was sent."""
    report = Report(session.name, stage.model, Bill(stage.prices), Bill(stage.prices))
    report.preset, report.recalls.rate = stage.preset, stage.refetch
    if stage.desk is not None:
        report.summaries = Summaries(Bill(stage.desk.prices(session.dialect)), stage.desk.batch)
    accounting = _Accounting(stage, run, session.dialect)
    headers = {"x-narrows-conversation": run}
    stage.play(session, run)
    asked: list[_Asked] = []
    for turn, body in enumerate(requests(session, stage.model, stage.marks)):
        turned = headers | {TURN_HEADER: str(turn)} if stage.provider is not None else headers
        began = time.perf_counter()
        reply = await ask(body, turned)
        report.seconds.append(time.perf_counter() - began)
        report.added_ms.append(float(reply.headers.get("x-narrows-ms", 0)))
        accounting.settle(report, body, reply)
        await accounting.summed(report)
        asked.append(_asked(stage.watching.newest.get(run)))
        progress()
    return report, asked


def _asked(planned: PlannedRequest | None) -> _Asked:
    if planned is None:
        return _Asked()
    tool = planned.tokens_sent - planned.plan.after - (planned.tokens_received - planned.plan.before)
    # a copy: what was looked up in the conversation is not kept with it
    conversation = replace(planned.context.conversation, messages=())
    return _Asked(conversation, planned.plan.edits, planned.tokens_received, tool)


async def _sighted(stage: Stage, session: Session, report: Report, asked: Sequence[_Asked]) -> Report:
    await asyncio.to_thread(_look, session, asked, stage.count, report)
    if asked and (last := asked[-1]).conversation is not None:
        report.last = weighed(last.conversation, last.edits, stage.count, last.whole, last.tool, stage.order)
    return report


def _look(session: Session, asked: Sequence[_Asked], count: Counter, report: Report) -> None:
    answers = session.spoken(count)
    called = any(part.kind == "call" for said in answers for part in said)
    report.protocol = "tools" if called else "text"
    for end, request, said in zip(session.turns, asked, answers, strict=True):
        conversation = request.conversation or session.conversation(count, end)
        look(conversation, request.edits, said, report.seen)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request as the provider received it: digests of its prefixes, and how many stand before its last step."""

    chain: tuple[bytes, ...] = ()
    tokens: int = 0
    steps: int = 0


class _Accounting:
    """The two bills of one run, request by request, and what became of the prefix."""

    def __init__(self, stage: Stage, run: str, dialect: str) -> None:
        self._stage = stage
        self._run = run
        self._dialect = dialect
        self._read = PromptReader(stage.count, APIS[dialect])
        self._cache = PromptCache(stage.count)
        self._rule = rule_for(stage.prices.model, stage.prices)
        self._before = _Sent()
        self._summed = Summed()

    def settle(self, report: Report, body: Json, reply: Reply) -> None:
        """Enter one request in the report."""
        if reply.usage is None:
            report.refuse(reply.status, reply.refusal)
            return
        rounds = self._stage.watching.rounds.get(self._run, Rounds())
        # what the client is told sums up what was said in all rounds
        answer = replace(reply.usage, completion=reply.usage.completion - sum(u.completion for u in rounds.usage))
        report.requests += 1
        given_up = report.given_up
        baseline = self._cache.charge(self._run, self._read(body), self._rule)
        report.baseline.add(replace(baseline, completion=answer.completion))
        for usage in (*rounds.usage, answer):
            report.bill.add(usage)
            report.worst = max(report.worst, report.ratio)
        report.recalls.add(rounds.answered, rounds.refused, (*rounds.usage, answer)[1:])
        word = said = reply.headers.get("x-narrows-prefix", "none")
        report.prefixes[word] += 1
        report.failed_open += reply.headers.get("x-narrows-mode") == "failed-open"
        for received in self._stage.received(self._run):
            self._compare(report, word, received.json)
            word = "extended"  # of a round nobody is told anything: it may do nothing else
        sent = sum(usage.prompt for usage in (*rounds.usage, answer))
        report.each.append(Answered(said, sent, baseline.prompt, report.given_up - given_up))

    async def summed(self, report: Report) -> None:
        """Enter what became of summaries with one request, once nothing is being made any more: what comes of them is
        there for the next one, and comes out the same every time."""
        planned, desk = self._stage.watching.newest.get(self._run), self._stage.desk
        if desk is None or planned is None:
            return
        key = planned.context.key
        before, self._summed = self._summed, await desk.summed(key)
        known = {record.id for record in before.records}
        new = [record for record in self._summed.records if record.id not in known]
        for record in new:
            report.summaries.answered(record)
        wanted = [] if new else planned.plan.wants
        report.summaries.failed += any(desk.failed(key, want) for want in wanted)
        report.summaries.adopted += self._summed.adopted(planned.plan)
        report.summaries.charge(before.spent, self._summed.spent)
        report.worst = max(report.worst, report.ratio)

    def _compare(self, report: Report, word: str, body: Json) -> None:
        """The request as the provider got it against the one before: extended, or declared."""
        prompt, before = self._read(body), self._before
        chain = prompt.chain("")
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before.chain, chain, strict=False)))
        if shared < len(before.chain):
            report.changed += 1
            report.given_up += before.tokens - prompt.ends[max(shared - 1, 0)]
            tail_cut = word == "tail-cut" and shared >= before.steps
            report.undeclared += not tail_cut and not word.startswith("checkpoint:")
        self._before = _Sent(chain, prompt.tokens, self._steps(body))

    def _steps(self, body: Json) -> int:
        """How many prefixes end before the newest reply of the model: what no tail cut may change."""
        field = FORMS[self._dialect].history
        history = body[field][: newest_reply(self._dialect, body[field])]
        return len(self._read({**body, field: history}).chain(""))


async def posted(
    http: aiohttp.ClientSession,
    url: str,
    key: str,
    body: Json,
    headers: Mapping[str, str],
    dialect: str = "openai_chat",
) -> Reply:
    """The plainest client there is."""
    form = FORMS[dialect]
    said = {**form.proof(key), "Content-Type": "application/json", **headers}
    try:
        async with http.post(f"{url}{form.path}", data=orjson.dumps(body), headers=said) as reply:
            text = await reply.read()
    except aiohttp.ClientError as error:
        return Reply(0, {}, None, str(error) or type(error).__name__)
    usage = usage_of(text, dialect) if reply.status == 200 else None
    return Reply(reply.status, reply.headers, usage, "" if usage else _refusal(text))


def usage_of(stream: bytes, dialect: str) -> Usage | None:
    """The usage that a stream of events ends with."""
    reader = DIALECTS[dialect].reply()
    for event in stream.split(b"\n\n"):
        reader.feed(event)
    return reader.usage


def _refusal(text: bytes) -> str:
    try:
        return str(orjson.loads(text)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "the reply holds no usage" if text else "the reply is empty"


async def replay_all(sessions: Sequence[Session], options: Options, progress: Progress = lambda: None) -> list[Report]:
    """Every session under every price table, `repeat` times, `concurrency` at once: one report for each of the two."""
    reports: list[Report] = []
    for model, members in options.tables(sessions).items():
        async with (
            staged(model, options) as stage,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
        ):
            gate = asyncio.Semaphore(options.concurrency)
            runs = [(i, n) for n in range(options.repeat) for i in range(len(members))]
            one = partial(_run, stage, http, gate, progress)
            done = await asyncio.gather(*(one(members[i], f"run-{i}-{n}", n == 0) for i, n in runs))
            for i, session in enumerate(members):
                first, *others = done[i :: len(members)]
                reports.append(joined([await _sighted(stage, session, *first), *(report for report, _ in others)]))
    return reports


async def replay_each(
    sessions: Sequence[Session], presets: Sequence[str], options: Options, progress: Progress = lambda: None
) -> list[Report]:
    """`replay_all` under one preset after the other, whichever `options` name."""
    return [
        report for preset in presets for report in await replay_all(sessions, replace(options, preset=preset), progress)
    ]


LEAST = 2
"""So many answered requests make a session that is worth replaying."""


def past(body: bytes, name: str) -> Session | str:
    """The session that led to a request; or a sentence why none can be replayed."""
    try:
        session = held(body, name, name)
    except ValueError as error:
        return f"There is nothing to replay: {error}."
    answered = len(session.turns)
    if answered < LEAST:
        found = f"{answered} answered {'request' if answered == 1 else 'requests'}"
        return f"There is nothing to replay: its history holds {found}, and it takes {LEAST}."
    return session


async def _run(
    stage: Stage,
    http: aiohttp.ClientSession,
    gate: asyncio.Semaphore,
    progress: Progress,
    session: Session,
    run: str,
    looked_at: bool,
) -> tuple[Report, list[_Asked]]:
    """One run. What was in sight is looked at when nobody waits any more, and of repeats once: they are alike."""
    async with gate:
        ask = partial(posted, http, stage.base_url, stage.key(run), dialect=session.dialect)
        try:
            report, asked = await _driven(session, run, stage, ask, progress)
            return report, asked if looked_at else []
        finally:
            stage.forget(run)
