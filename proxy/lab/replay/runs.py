"""Recorded sessions, turn by turn through the real proxy, with an honest bill at the end.

The requests of a session go over real sockets to a real Narrows, and from there to the built-in provider, which plays
the recorded turns back and bills by its prompt cache. What doing nothing would have cost comes from the same arithmetic
on the requests as the client sent them.

Laws
  Each session has a conversation, and (but for a real upstream) a credential and a cache, of its own.
  A change of the prefix that the reply does not declare counts as a fault; so does every request without an answer.
  A recall makes one more request of a turn: it is billed, and has to begin with all of the one before.
  A summary is there one turn after it was wanted, at the earliest. Each call for one is billed, whatever came of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import aiohttp
import orjson

from policies.assemble import PlanOptions, assemble
from policies.context import TokenCounter
from policies.dialects import DEFAULT, DIALECTS, Request
from policies.dialects.dialect import usage_in
from policies.model.conversation import Conversation
from policies.model.edits import Edit
from policies.model.summary_record import SummaryCost, SummaryRecord
from policies.money.prices import Prices, Usage
from policies.planning.plan import plan
from policies.planning.state import PlanState
from policies.presets import Preset
from policies.render import body_of, render
from proxy.lab.breakdown import break_down, order_of
from proxy.lab.provider import APIS, TURN_HEADER, PromptCache, PromptReader, rule_for
from proxy.lab.quality import tally
from proxy.lab.replay.bills import Compared, ComparedBill, Moment, SessionBill, SummaryCosts
from proxy.lab.replay.environment import Options, RecallRounds, ReplayEnvironment, environment_for
from proxy.lab.replay.pauses import PauseCosts, PauseMeter, why_no_ping
from proxy.lab.replay.recorded import Json, RequestReader, Session, newest_reply, requests
from proxy.lab.replay.report import Report, RequestResult
from proxy.lab.replay.times import schedule


@dataclass(frozen=True, slots=True)
class ClientReply:
    status: int
    headers: Mapping[str, str]
    usage: Usage | None
    refusal: str = ""


Ask = Callable[[Json, Mapping[str, str]], Awaitable[ClientReply]]
"""A client: sends one body with these headers."""
Progress = Callable[[], None]


class RequestView(NamedTuple):
    """A request as the model first read it, with the tokens of what the client sent and of the recall tool."""

    conversation: Conversation
    edits: Sequence[Edit]
    tokens: int
    tool: int


async def replay(
    session: Session, run: str, environment: ReplayEnvironment, ask: Ask, progress: Progress = lambda: None
) -> Report:
    prices, summaries = environment.prices, environment.summaries
    report = Report(session.name, environment.model, SessionBill(prices), SessionBill(prices))
    report.preset, report.recalls.rate = environment.options.preset, environment.options.refetch
    report.kind, report.changes = session.group, session.changes
    if session.times and environment.provider is not None:
        cost = ComparedBill(prices_known=report.bill.prices.listed)
        report.pauses = PauseCosts(report.bill, report.baseline, report.pings, cost)
    if summaries is not None:
        report.summaries = SummaryCosts(SessionBill(summaries.prices(session.dialect)), summaries.batch)
    accounting = _Accounting(environment, run, session)
    headers = {"x-narrows-conversation": run}
    environment.play(session, run)
    views: list[RequestView | None] = []
    began, due = environment.clock.now, schedule(session.times, len(session.turns))
    for turn, body in enumerate(requests(session, environment.model, environment.marks)):
        if environment.provider is not None:  # a real one has no other time than ours
            await environment.wait_until(began + due[turn])
            accounting.add_pings(report, began)
        numbered = headers | {TURN_HEADER: str(turn)} if environment.provider is not None else headers
        accounting.add_request(report, body, await ask(body, numbered))
        await accounting.add_summaries(report)
        report.each_request[-1] = replace(report.each_request[-1], input_bill=report.input_bill)
        views.append(None)
        if request := environment.observer.newest.get(run):
            tool = request.tokens_sent - request.plan.after - (request.tokens_received - request.plan.before)
            # a copy: what was looked up in the conversation is not stored with it
            conversation = replace(request.context.conversation)
            views[-1] = RequestView(conversation, request.plan.edits, request.tokens_received, tool)
            report.aim = request.context.plan_settings.aim
        progress()
    if keep_warm := environment.options.keep_warm:
        report.no_ping = why_no_ping(session, orjson.dumps(body), keep_warm, rule_for(prices.model, prices))
    if environment.provider is not None and session.times:  # nobody knows that nobody returns
        await environment.wait_until(environment.clock.now + keep_warm)
        accounting.add_pings(report, began)
    await asyncio.to_thread(_add_visibility, environment, session, report, views)
    return report


def _add_visibility(
    environment: ReplayEnvironment, session: Session, report: Report, views: Sequence[RequestView | None]
) -> None:
    """Judge what was in sight by each request, and the sizes of the last; None where it went as the client sent it."""
    count = environment.count
    answers = session.replies(count)
    has_calls = any(part.kind == "call" for answer in answers for part in answer)
    report.protocol = "tools" if has_calls else "text"
    for end, request, answer in zip(session.turns, views, answers, strict=True):
        conversation, edits, *_ = request or (session.conversation(count, end), ())
        tally(conversation, edits, answer, report.used_by_later_turns)
        report.needs.add(conversation, edits, answer)
    report.recalls.uses_of_hidden_text = report.used_by_later_turns.hidden
    if views and (last := views[-1]):
        order = order_of(environment.options.chosen.policies)
        report.last_request = break_down(last.conversation, last.edits, count, last.tokens, last.tool, order)


class _Accounting:
    """The two bills of one run, request by request, and what became of the prefix."""

    def __init__(self, environment: ReplayEnvironment, run: str, session: Session) -> None:
        self._environment = environment
        self._run = run
        self._dialect = session.dialect
        self._edited_at = session.edit.request if session.edit else 0
        self._read = PromptReader(environment.count, APIS[session.dialect])
        self._cache = PromptCache(environment.count, environment.clock)
        self._rule = rule_for(environment.prices.model, environment.prices)
        prices, count = environment.prices, environment.count
        # on other caches there are no marks of ours
        self._marks_alone = MarksAlone(session.dialect, prices, count) if prices.breakpoints else None
        self._requests = RequestReader(session.dialect, count)
        self._paused, self._paused_without = (PauseMeter(count, self._rule, prices) for _ in range(2))
        self._marked_cache = PromptCache(count, environment.clock)
        # the request before, as the provider received it: digests of its prefixes, how many stand before its last step
        self._chain: tuple[bytes, ...] = ()
        self._steps = 0
        self._tokens = 0
        self._summaries: Sequence[SummaryRecord] = ()
        self._costs = SummaryCost()

    def add_request(self, report: Report, body: Json, reply: ClientReply) -> None:
        if reply.usage is None:
            report.refuse(reply.status, reply.refusal)
            return
        rounds = self._environment.observer.rounds.get(self._run, RecallRounds())
        # the usage that the client receives is the sum of all rounds
        answer = replace(reply.usage, completion=reply.usage.completion - sum(u.completion for u in rounds.usage))
        report.requests += 1
        given_up = report.cached_tokens_given_up
        baseline = self._cache.charge(self._run, self._read(body), self._rule)
        report.baseline.add(replace(baseline, completion=answer.completion))
        marked = self._read(self._marks_alone.sent(*self._requests.read(body))) if self._marks_alone else None
        alone = self._marked_cache.charge(self._run, marked, self._rule) if marked else baseline
        report.marks_alone.add(replace(alone, completion=answer.completion))
        for usage in (*rounds.usage, answer):
            report.bill.add(usage)
            report.compare_bills()
        report.recalls.add(rounds.answered, rounds.refused, (*rounds.usage, answer)[1:])
        declared = word = reply.headers.get("x-narrows-prefix", "none")
        report.prefix[declared] += 1
        report.failed_open += reply.headers.get("x-narrows-mode") == "failed-open"
        tools: object = None
        for received in self._environment.received(self._run):
            # what a search has found is declared by no header: the reply has begun
            is_longer = tools is not None and received.json.get("tools") != tools
            self._compare(report, "checkpoint:tools" if is_longer else word, received.json)
            tools = received.json.get("tools")
            word = "extended"  # no reply declares anything of a round: it may do nothing else
        expired = Compared()
        if report.pauses is not None:
            expired = self._add_pause(report.pauses, body, baseline, (*rounds.usage, answer), declared)
            report.pauses.add(expired)
        tokens = Compared(sum(usage.prompt for usage in (*rounds.usage, answer)), baseline.prompt)
        given_up, summary = report.cached_tokens_given_up - given_up, reply.headers.get("x-narrows-summary", "")
        report.each_request.append(RequestResult(declared, tokens, given_up, summary, expired))

    def _add_pause(
        self, costs: PauseCosts, body: Json, baseline: Usage, rounds: Sequence[Usage], prefix: str
    ) -> Compared:
        """Enter what a request cost more because its cache had expired; the tokens of that."""
        without, costs_without = self._lost(self._paused_without, body, baseline, is_cold=False)
        received = [each.json for each in self._environment.received(self._run)]
        lost = [
            self._lost(self._paused, sent, usage, is_cold=prefix == "checkpoint:cold" and not at)
            for at, (usage, sent) in enumerate(zip(rounds, received, strict=False))
        ]
        with_, before = sum(dollars for _, dollars in lost), costs.cost
        costs.cost = replace(before, with_=before.with_ + with_, without=before.without + costs_without)
        return Compared(sum(tokens for tokens, _ in lost), without)

    def _lost(self, meter: PauseMeter, body: Json, usage: Usage, *, is_cold: bool) -> tuple[int, float]:
        before = self._read(self._without_newest(body)).tokens
        return meter.lost(self._run, self._read(body), before, usage, is_cold=is_cold)

    def _without_newest(self, body: Json) -> Json:
        """What stands before the newest reply of the model: the request before."""
        field = DIALECTS[self._dialect].fields.history
        return {**body, field: body[field][: newest_reply(self._dialect, body[field])]}

    def add_pings(self, report: Report, began: float) -> None:
        """Enter what was sent since the request before to keep its prompt warm."""
        for at, usage in self._environment.observer.pings.pop(self._run, ()):
            report.bill.add(usage)
            report.pings.add(usage)
            if report.pauses is not None:
                report.pauses.pinged_at.append(at - began)

    async def add_summaries(self, report: Report) -> None:
        """Enter what became of summaries with one request, once nothing is being written any more: what comes of them
        is there for the next one, and comes out the same every time."""
        observer = self._environment.summaries
        request = self._environment.observer.newest.get(self._run)
        if observer is None or request is None:
            return
        key = request.context.key
        old, before = {record.id for record in self._summaries}, self._costs
        self._summaries, self._costs = await observer.results(key)
        new = [record for record in self._summaries if record.id not in old]
        for record in new:
            report.summaries.add(record)
        wanted = [] if new else request.plan.wants
        report.summaries.failed += any(observer.maker.state(key, want.first) == "failed" for want in wanted)
        digests = tuple(record.content for record in self._summaries if record.kind == "digest" and record.content)
        adopted = sum(edit.text.startswith(digests) for edit in request.plan.new if edit.by == "digest")
        report.summaries.adopted += request.plan.adopted + adopted
        moment = Moment(report.requests, int(report.each_request[-1].tokens_sent.with_))
        is_answered = any(record.kind == "compaction" for record in new)
        report.summaries.note(moment, is_answered, request.plan.adopted > 0)
        report.summaries.charge(before, self._costs)
        report.compare_bills()

    def _compare(self, report: Report, word: str, body: Json) -> None:
        """The request as the provider received it against the one before: extended, or declared."""
        prompt = self._read(body)
        chain = prompt.chain("")
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._chain, chain, strict=False)))
        if shared < len(self._chain):
            report.prefix_changes += 1
            report.cached_tokens_given_up += self._tokens - prompt.ends[max(shared - 1, 0)]
            tail_cut = word == "tail-cut" and shared >= self._steps
            by_client = word == "client-changed" and report.requests == self._edited_at
            report.undeclared_prefix_changes += not (tail_cut or by_client or word.startswith("checkpoint:"))
        # no tail cut may change the prefixes that end before the newest reply of the model
        self._steps = len(self._read(self._without_newest(body)).chain(""))
        self._chain, self._tokens = chain, prompt.tokens


@dataclass(frozen=True, slots=True)
class RawReply:
    """The reply to a request; status 0 where there is none."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def refusal(self) -> str:
        try:
            return str(orjson.loads(self.body)["error"]["message"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return f"status {self.status}" if self.status else "no answer"


async def send(
    http: aiohttp.ClientSession, url: str, key: str, body: Json, headers: Mapping[str, str], dialect: str = DEFAULT
) -> RawReply:
    """The plainest client there is."""
    api = DIALECTS[dialect]
    headers = {**api.http.auth(key), "Content-Type": "application/json", **headers}
    try:
        async with http.post(f"{url}{api.http.path}", data=orjson.dumps(body), headers=headers) as reply:
            return RawReply(reply.status, reply.headers, await reply.read())
    except aiohttp.ClientError as error:
        return RawReply(0, {}, orjson.dumps({"error": {"message": str(error) or type(error).__name__}}))


async def post(
    http: aiohttp.ClientSession, url: str, key: str, body: Json, headers: Mapping[str, str], dialect: str = DEFAULT
) -> ClientReply:
    """The same, with the usage that the reply reports."""
    raw = await send(http, url, key, body, headers, dialect)
    usage = usage_in(DIALECTS[dialect], raw.body) if raw.status == 200 else None
    refusal = raw.refusal
    if refusal == f"status {raw.status}":
        refusal = "the reply holds no usage" if raw.body else "the reply is empty"
    return ClientReply(raw.status, raw.headers, usage, "" if usage is not None else refusal)


async def replay_all(sessions: Sequence[Session], options: Options, progress: Progress = lambda: None) -> list[Report]:
    """Every session under every price table: one report for each of the two."""
    reports: list[Report] = []
    for model, members in options.tables(sessions).items():
        async with (
            environment_for(model, options) as environment,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
        ):
            for at, session in enumerate(members):
                run = f"run-{at}"
                ask = partial(post, http, environment.base_url, environment.key(run), dialect=session.dialect)
                try:
                    reports.append(await replay(session, run, environment, ask, progress))
                finally:
                    environment.forget(run)
    return reports


async def replay_each(
    sessions: Sequence[Session], presets: Sequence[str], options: Options, progress: Progress = lambda: None
) -> list[Report]:
    """`replay_all` under one preset after the other, whichever `options` name."""
    return [
        report for preset in presets for report in await replay_all(sessions, replace(options, preset=preset), progress)
    ]


# --- what a session costs with cache marks of ours and nothing else: what compaction saves is counted from there ---


@dataclass
class MarksAlone:
    """The requests of one session, one after the other, as a preset without policies would have them sent."""

    dialect: str
    prices: Prices
    count: TokenCounter
    _state: PlanState | None = None

    def sent(self, request: Request, conversation: Conversation) -> Json:
        """The body that would be sent in the place of this request."""
        api, options = DIALECTS[self.dialect], PlanOptions(Preset(()), self.prices, recall=False)
        settings = assemble(api, request, conversation, self.count, options).settings
        result = plan(conversation, settings, state=self._state)
        self._state = result.state
        rendering = render(self.dialect, request, conversation, result)
        body: Json = orjson.loads(body_of(api, request, result, rendering, marks=settings.marks))
        return body
