"""The pages of a conversation's summaries: which stands, all of them with what they cost, and one for people."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from policies.context import Want
from policies.dialects import TooManyError
from policies.model.rawjson import UnreadableError, members
from policies.model.summary_record import NO_USE, SummaryCost, SummaryRecord, SummaryStatus, statuses
from proxy.addons.pages.answers import PageParts, json_page, message_of, moment
from proxy.config.routes import spoken
from proxy.errors import ApiError
from proxy.identity.credential import auth_of, is_plain_key
from proxy.identity.who import Grant, Identity, check_model
from proxy.kernel.understand import RequestParser
from proxy.kernel.wire.downstream import Upload
from proxy.memory import Key, Store
from proxy.memory.cached import CachedStore, StoreWriter
from proxy.memory.conversation import ParsedRequest
from proxy.summaries.endpoints import ModelRequest
from proxy.summaries.jobs import SummaryJob
from proxy.summaries.maker import RejectedError, SummaryMaker
from proxy.summaries.payments import Payments
from proxy.summaries.summarizer import SummarizerError
from proxy.upstreams.table import row_for

if TYPE_CHECKING:
    from proxy.addons.limits.limits import Limits

_STATUSES = {"budget": 429, "timeout": 504, "busy": 503, "paused": 503, "stopped": 503}
"""The status where no summary was written, by the reason; 502 for all others."""
_PROVENANCE = (
    *("id", "kind", "model", "policy", "prompt", "generation", "previous"),
    *("created_at", "tokens_before", "tokens_after", "rejected"),
)


@dataclass(frozen=True, slots=True)
class SummaryPages:
    parts: PageParts
    cached_store: CachedStore
    maker: SummaryMaker
    request_parser: RequestParser
    payments: Payments
    limits: "Limits | None"

    async def newest(self, key: Key, grant: Grant) -> dict[str, Any]:
        """The summary in the newest request, nulls where none stands; empty where none was written. Raises ApiError."""
        records = await self.parts.ask("summaries", self.parts.store.summaries(key))
        visible = grant.visible((record.owner, record) for record in records)
        seen = {record.id: record for record in visible if record.kind == "compaction"}
        if not seen:
            return {}
        status_of = await self._statuses(key, list(seen.values()))
        record = next((seen[id] for id, status in status_of.items() if status.state == "stands"), None)
        text, at = (record.content, moment(record.created_at)) if record else (None, None)
        count = len(record.sources) if record else 0
        agent = {"summary": text, "summaryMessageCount": count, "summaryUpdatedAt": at}
        rows = [{"id": id, **status_of[id]._asdict(), "created_at": moment(seen[id].created_at)} for id in seen]
        return {"id": key.conversation, "summary": text, "summaryUpdatedAt": at, "agent": agent, "summaries": rows}

    async def _statuses(self, key: Key, records: Sequence[SummaryRecord]) -> Mapping[str, SummaryStatus]:
        """The statuses of summaries for the prompt, by id. Raises ApiError."""
        return await self.parts.ask("newest_step", statuses_in(self.parts.store, key, records, self.parts.clock()))

    async def listed(self, request: web.BaseRequest, name: str) -> web.Response:
        key, grant = self.parts.named(request, name)
        all_records = await self.parts.ask("summaries", self.parts.store.summaries(key))
        records = grant.visible((record.owner, record) for record in all_records)
        costs: dict[str, SummaryCost] = {}
        if grant.owner is None:
            costs.update(await self.parts.ask("spent", self.parts.store.spent(key)))
        else:
            for record in records:
                costs[record.kind] = costs.get(record.kind, SummaryCost()) + record.spent
        if not records and not costs:
            raise ApiError(404, "This conversation has no stored summaries.", "not_found")
        status_of = await self._statuses(key, records)
        rows = [{**provenance(record, status_of.get(record.id)), "content": record.content} for record in records]
        bills = {kind: bill_of(cost) for kind, cost in costs.items()}
        return json_page({"conversation": name, "summaries": rows, "spent": bills})

    async def summarize(self, request: web.BaseRequest, name: str) -> web.Response:
        """A summary for people: the stored one of exactly these messages, or a new one at the caller's cost."""
        self.parts.permit(request, "summarize")
        identity = self.parts.who(request)
        if not self.parts.settings.summaries:
            raise ApiError(404, "Summaries are off; set `summaries = true`.", "no_summaries")
        payment = self.payments.possible(identity.credential, is_plain_key(request), identity.is_here)
        key, (dialect, parsed) = Key(identity.tenant, name), await self._parse(request, identity.tenant)
        records = await self.parts.ask("summaries", self.parts.store.summaries(key))
        blocks = parsed.conversation.blocks[parsed.conversation.head :]
        if not blocks:
            message = "There is nothing to summarize: all messages are system text."
            raise ApiError(400, message, "bad_body", "messages")
        asks = ModelRequest(
            model=parsed.request.model,
            auth=auth_of(request, has_key=identity.key is not None),
            owner=identity.owner,
            payment=payment,
            dialect=dialect,
            upstream=self._upstream(identity, dialect, parsed.request.model),
        )
        job = SummaryJob(
            key=key,
            conversation=parsed.conversation,
            want=Want(blocks[0].anchor, blocks[-1].anchor, "asked"),
            request=asks,
            count=parsed.count,
            policy="history",
            records=tuple(records),
        )
        is_verified = identity.is_here or self.payments.states.is_accepted(asks.owner)
        is_verified = is_verified or await self.cached_store.is_owner(key, asks.owner)
        if not is_verified or not self.maker.summarizer.may_ask(asks):
            message = (
                "No summary can be made with your credential now: it must be a plain API key (or one for which the "
                "gateway's own key is used), and the upstream must have accepted it in a chat request here."
            )
            raise ApiError(403, message, "forbidden")
        admitted = await self.limits.admit(identity.key, identity.owner, dialect) if self.limits is not None else None
        try:
            record = await self.parts.ask("history", self.maker.history(job))
        except RejectedError as error:
            message = f"The model's summary was rejected ({error.reason}); try again, or name another model."
            raise ApiError(502, message, "summary_rejected") from error
        except SummarizerError as error:
            message = f"No summary could be made ({error.reason}); try again later, or check `summarizers`."
            status = _STATUSES.get(error.reason, 502)
            raise ApiError(status, message, f"summarizer_{error.reason}") from error
        finally:
            if admitted is not None:
                admitted.close()
        StoreWriter(self.cached_store).own(self.cached_store.conversations.of(key), asks.owner)
        cached = any(record.id == other.id for other in records)
        return json_page({**provenance(record), "content": record.content, "cached": cached})

    def _upstream(self, access: Identity, dialect: str, model: str) -> str:
        """The name of the upstream of the conversation. Raises ApiError where the key may not ask there."""
        settings = self.parts.settings
        check_model(access, model)
        return row_for(settings.upstream_rows, settings.rules, access, dialect, model).name

    async def _parse(self, request: web.BaseRequest, tenant: str) -> tuple[str, ParsedRequest]:
        """The body, and its API: of two that look alike the headers tell. Raises ApiError."""
        settings = self.parts.settings
        _, body = await Upload(request, settings.body_timeout).whole(settings.body_limit)
        for dialect in spoken(request.headers):
            try:
                parsed = await self.request_parser.parse(dialect, body, tenant)
            except TooManyError as error:
                message = f"This is too much to summarize: {error}."
                raise ApiError(400, message, "too_many", error.what) from error
            if parsed is not None:
                return dialect, parsed
        try:
            start, end = members(body)["model"]
            msgspec.json.decode(body[start:end], type=str)
        except UnreadableError as error:
            message = "The body must be a JSON object without duplicate keys."
            raise ApiError(400, message, "bad_body") from error
        except (KeyError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, "`model` must be the name of a model.", "bad_body", "model") from error
        message = "`messages` (or `input`) must be a list with at least one message."
        raise ApiError(400, message, "bad_body", "messages")


async def statuses_in(
    store: Store, key: Key, records: Sequence[SummaryRecord], now: float
) -> Mapping[str, SummaryStatus]:
    """The statuses of summaries, by id, as the newest request says. Raises StoreTrouble."""
    step = await store.newest_step(key)
    use, at = (step.sent.use, step.at) if step is not None and step.sent is not None else (NO_USE, 0.0)
    return statuses(records, use, at, now)


def provenance(record: SummaryRecord, status: SummaryStatus | None = None) -> dict[str, Any]:
    """The sources, the model, the cost and the status of a summary, as JSON."""
    return {
        **{name: getattr(record, name) for name in _PROVENANCE},
        **({"state": status.state, "reason": status.reason} if status else {}),
        "created_at": moment(record.created_at),
        "messages": [message_of(source) for source in record.sources],
        **bill_of(record.spent),
    }


def bill_of(cost: SummaryCost) -> dict[str, Any]:
    usage = asdict(cost)
    del usage["dollars"]
    return {"dollars": cost.known_dollars, "usage": usage}
