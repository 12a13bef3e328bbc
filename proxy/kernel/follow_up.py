"""Once the upstream answers a planned request: it is remembered and learned from, and sent again where its
reply goes on after a recall or where it was too long. Only `next_round` may raise.
"""

from dataclasses import dataclass

from msgspec import structs

from policies.dialects import DIALECTS, Reply
from policies.dialects.overflow import Overflow
from policies.model.edits import Insert
from policies.restore import ReplyInProgress, reply_digest
from proxy.config import Settings
from proxy.kernel.defer import with_tools
from proxy.kernel.plan import step_record
from proxy.kernel.prepare import Compactor, asks_for_summary, in_arm, retried
from proxy.kernel.understand import RequestParser
from proxy.memory.cached import CachedStore, StoreWriter
from proxy.requests import PlannedRequest, UpstreamRequest
from proxy.summaries.background import BackgroundWriters
from proxy.telemetry import Telemetry


@dataclass(eq=False)
class FollowUp:
    settings: Settings
    compactor: Compactor
    parser: RequestParser
    store: CachedStore
    telemetry: Telemetry
    writers: BackgroundWriters

    def __post_init__(self) -> None:
        self._writer = StoreWriter(self.store)  # one for all: it writes together what it is given

    async def answered(self, upstream_request: UpstreamRequest, status: int) -> UpstreamRequest:
        """The upstream has begun to answer, with this status. The same request, with what the reply's headers say now.
        Where another process may serve the next request of the conversation, it finds what was decided for this one."""
        client_request, planned = upstream_request.client_request, upstream_request.planned
        if planned is None or not 200 <= status < 300:
            return upstream_request
        if not client_request.is_accepted:
            tenant, received = client_request.sender.tenant, planned.context.received
            self.parser.keep(client_request.dialect, received, tenant, client_request.conversation)
        try:
            self._store_sent(upstream_request, planned)
            await self.store.settle(planned.context.key)
            summary = self.writers.begin(planned) if upstream_request.notes.left_out else ""
        except Exception as error:  # law 6: the reply has come, and goes to the client
            self.telemetry.log.error("not_stored", error=type(error).__name__, exc_info=True)
            return upstream_request
        if not summary:
            return upstream_request
        return structs.replace(upstream_request, headers={**upstream_request.headers, "x-narrows-summary": summary})

    def _store_sent(self, upstream_request: UpstreamRequest, planned: PlannedRequest) -> None:
        client_request, record = upstream_request.client_request, upstream_request.notes.record
        context, writer = planned.context, self._writer
        writer.own(context.live, client_request.sender.owner)
        if record is None or client_request.is_dry:
            return
        if planned.is_quiet:
            writer.note_sent(context.live, context.conversation, record, is_quiet=True)
        else:
            state, instead = None if planned.plan.shed else planned.plan.state, upstream_request.notes.supersedes
            writer.remember(context.live, context.fingerprint, context.conversation, state, record, supersedes=instead)
        for of_list in self.compactor.deferral.of_first(context) if self.compactor.deferral is not None else ():
            writer.note(context.live.key, of_list)
        first, _ = upstream_request.notes.continues or (None, 0)
        if first is not None and first.planned is not None and first.notes.record is not None:
            writer.continued(context.live, first.planned.context.fingerprint, first.notes.record, record)

    async def next_round(self, upstream_request: UpstreamRequest, reply: Reply, choice: int) -> UpstreamRequest:
        """The request of the next round, for a choice that is pending: what the client sent, the recall calls of the
        model, and the answers. `upstream_request` is that of the first one."""
        client_request, first, result = upstream_request.client_request, upstream_request.planned, reply.result(choice)
        assert first is not None
        in_progress, compactor = ReplyInProgress(result.text, result.rounds), self.compactor
        try:
            planned = await compactor.plan(client_request, in_progress, first)
            prepared = compactor.compacted(planned, None, first) if planned else compactor.unread(client_request)
            following = await prepared
        except Exception as error:  # law 6 again: the model gets its answer all the same
            self.telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            following = await self._unplanned(upstream_request, first, in_progress)
        # no header of the reply can say it any more
        self.telemetry.metrics.count("prefix", following.headers["x-narrows-prefix"])
        count = await self.parser.counter(first.context.request.model)
        answer_tokens = max(count(result.text), reply.completion if len(reply.over) + len(reply.pending) == 1 else 0)
        body = DIALECTS[client_request.dialect].recall.next_round(following.body, answer_tokens)
        return structs.replace(following.noting(continues=(upstream_request, answer_tokens)), body=body)

    async def _unplanned(
        self, upstream_request: UpstreamRequest, first: PlannedRequest, in_progress: ReplyInProgress
    ) -> UpstreamRequest:
        """A later round where planning fails: what the client sent and the exchange of the reply, nothing shortened."""
        client_request, context = upstream_request.client_request, first.context
        tools, sent, understanding = context.tools.tools, context.received, self.compactor.understanding
        sent = with_tools(sent, tools) if tools is not None else sent
        reading = understanding.restored(client_request, context.live, sent, context.exchanges, in_progress)
        restored, _, answers = await reading
        dialect, request = context.dialect, restored.request
        tool = dialect.recall.tool(request, self.settings.recall == "always")
        consent = dialect.consent(request) if self.settings.drop_bound_thinking else None
        body = dialect.joined(request, {}, tool, consent.changes if consent else ())
        headers = {**upstream_request.headers, "x-narrows-prefix": "checkpoint:failed-open"}
        answered = structs.replace(first, context=structs.replace(context, answers=answers))
        first_round = upstream_request.noting(record=None)
        return structs.replace(first_round, body=body, headers=headers, planned=answered, marks="")

    async def compact_harder(self, upstream_request: UpstreamRequest, overflow: Overflow) -> UpstreamRequest | None:
        """Learn that its upstream finds it too long. What may be sent in its place, strictly smaller; None where there
        is no such thing, or it is the request of a later round. What was decided for it before counts no more."""
        planned, compactor = upstream_request.planned, self.compactor
        if planned is None or not upstream_request.may_change:
            return None
        try:
            compactor.learned.note_overflow(upstream_request, overflow)
            if upstream_request.client_request.is_dry:
                return await self._taken_out(upstream_request)
            if upstream_request.notes.continues is not None:
                return None
            if (smaller := await compactor.planner.plan_smaller(planned)) is None:
                return None
            if upstream_request.notes.left_out:
                smaller = await compactor.derived(smaller)
            if await compactor.is_verified(smaller):
                await self.store.supersede(smaller.context.key, step_record(smaller, compactor.clock()))
            sendable = compactor.sendable(smaller, left_out=upstream_request.notes.left_out, supersedes=True)
        except Exception as error:  # law 6: the client gets the upstream's error then
            self.telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            return None
        return retried(upstream_request, sendable.noting(arm=upstream_request.notes.arm))

    async def keep_tools(self, upstream_request: UpstreamRequest) -> UpstreamRequest | None:
        """Learn that its upstream takes no deferred definitions. The request with all of them, for its reply from the
        beginning; None where that fails."""
        client_request, learned = upstream_request.client_request, self.compactor.learned
        learned.note_refused("tools", upstream_request)
        try:
            whole = await self.compactor.prepare(client_request)
        except Exception as error:  # law 6: the client gets the upstream's error then
            self.telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            return None
        headers = {**whole.headers, "x-narrows-ms": upstream_request.headers.get("x-narrows-ms", "")}
        notes = upstream_request.notes
        return structs.replace(whole.noting(arm=notes.arm, continues=notes.continues), headers=headers)

    async def _taken_out(self, upstream_request: UpstreamRequest) -> UpstreamRequest | None:
        """A request that passed as the client wrote it, and was too long: compacted, as its conversation is from now
        on. None where that does not make it smaller."""
        compacted = await self.compactor.prepare(structs.replace(upstream_request.client_request, is_dry=False))
        if compacted.planned is None or compacted.tokens_sent >= upstream_request.tokens_sent:
            return None
        arm = upstream_request.notes.arm
        return retried(upstream_request, in_arm(compacted, "left") if arm == "holdout" else compacted.noting(arm=arm))

    async def remember_recalls(self, upstream_request: UpstreamRequest, reply: Reply, choice: int) -> None:
        """Store the recall exchange of a choice that is over, or that it has none, before the client has the reply."""
        result, planned = reply.result(choice), upstream_request.planned
        if not upstream_request.notes.is_read or planned is None:
            return
        context, summaries = planned.context, self.parser.summaries
        if summaries is not None and asks_for_summary(planned):
            await summaries.note(planned, result.text, self.compactor.clock())
        if context.client_request.is_dry:  # nobody has looked for the exchanges in its history
            return
        after = context.received.conversation.end_anchor(context.received.conversation.steps - 1)
        digest = reply_digest(result.text, result.call_ids)
        exchange = Insert(after, digest, result.rounds, context.client_request.dialect)
        together = {**context.exchanges, after: (exchange,)} if result.rounds else context.exchanges
        complete = context.lookup.complete  # else nobody may take these for all
        context.live.add_exchanges(exchange.dialect, after, digest, together, complete=complete)
        if result.rounds:
            await self._writer.store_exchange(context.key, exchange)
        self.telemetry.metrics.count("recalls", "beside", by=sum(len(r.calls) for r in result.rounds if r.places))

    def learn(self, upstream_request: UpstreamRequest, reply: Reply, status: int) -> None:
        """Learn from a round that is over. `status` is the upstream's, 0 where no reply came."""
        planned = upstream_request.planned
        if planned is not None and 200 <= status < 300 and reply.usage is not None:
            self.compactor.learned.note_usage(planned, upstream_request.tokens_sent, reply.usage.prompt)
            if sign := self.compactor.learned.caches.note(upstream_request, reply.usage):
                model, upstream = planned.context.request.model, upstream_request.client_request.upstream
                self.telemetry.log.warning("cache_differs", sign=sign, model=model, upstream=upstream)
