"""The pages of conversations: their summaries and what they cost, a summary for people, and deletion.

Laws
  Who asks proves it, as `callers` says.
  What is missing, empty or somebody else's is told in the same words, and a deletion says nothing of what was there.
  A deletion stays on record: it is noted after what it forgets.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import web

from policies.context import Want
from policies.dialects import TooManyError
from policies.model.conversation import Conversation
from policies.model.rawjson import UnreadableError, members
from policies.model.summary_record import SummaryCost, SummaryRecord
from proxy.admin.export import moment
from proxy.admin.texts import PRIVATE, READ, Page, Reading, asked, only
from proxy.compaction.request_parser import RequestParser
from proxy.config import Settings
from proxy.config.routes import spoken
from proxy.errors import ApiError
from proxy.gateway.downstream import Upload
from proxy.identity import (
    Caller,
    VerifiedCredentials,
    asks_here,
    auth_of,
    caller_of,
    credential_of,
    owner_of,
    tenant_of,
)
from proxy.requests import ParsedRequest
from proxy.store import Key, Store
from proxy.store.audit_log import AuditLog
from proxy.store.forgetting import ForgetRegistry
from proxy.summaries.jobs import SummaryJob
from proxy.summaries.maker import RejectedError, SummaryMaker
from proxy.summaries.summarizer import SummarizerError
from proxy.telemetry import Telemetry

CONVERSATIONS = "/narrows/conversations"

_STATUSES = {"timeout": 504, "busy": 503, "paused": 503, "stopped": 503}
"""What is answered where no summary came, by the reason; 502 for all others."""
_FIELDS = 8
"""Parameters of a query that are read at all."""

T = TypeVar("T")


class Conversations:
    """Answers what people ask about conversations."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        summaries: SummaryMaker,
        audit_log: AuditLog,
        request_parser: RequestParser,
        verified: VerifiedCredentials,
        telemetry: Telemetry,
        secret: bytes,
        forgets: ForgetRegistry,
        reading: Reading,
    ) -> None:
        self._settings = settings
        self._verified = verified
        self._store = store
        self._summaries = summaries
        self._audit_log = audit_log
        self._request_parser = request_parser
        self._telemetry = telemetry
        self._secret = secret
        self._forgets = forgets
        pages: dict[str, tuple[tuple[str, ...], Page]] = {
            "": (("DELETE",), self._delete),
            "summaries": (READ, self._list),
            "summary": (("POST",), self._summary),
        }
        self._pages = [(name, *page) for made in (reading.pages, pages) for name, page in made.items()]

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The page that the target of the request names. Raises ApiError."""
        name, page = named(request.raw_path)
        if name is None:
            only(request, ("DELETE",))
            return await self._delete_all(request)
        found = [(methods, answer) for called, methods, answer in self._pages if called == page]
        if not found:
            raise _nowhere()
        only(request, [method for methods, _ in found for method in methods])
        return await next(answer for methods, answer in found if request.method in methods)(request, name)

    async def _list(self, request: web.BaseRequest, name: str) -> web.Response:
        caller = self._caller(request)
        key = Key(caller.tenant, name)
        kept = await self._asked("summaries", self._store.summaries(key))
        records = caller.seen((each.owner, each) for each in kept)
        if caller.sees_all:
            spent = await self._asked("spent", self._store.spent(key))
        else:
            spent = _sums(records)
        if not records and not spent:
            raise ApiError(404, "No summaries are kept of this conversation.", "not_found")
        rows = [{**provenance(record), "content": record.content} for record in records]
        bills = {kind: bill(sum_) for kind, sum_ in spent.items()}
        return _json({"conversation": name, "summaries": rows, "spent": bills})

    async def _summary(self, request: web.BaseRequest, name: str) -> web.Response:
        """A summary for people: the one that is kept for exactly these messages, or a new one at the caller's cost."""
        credential = credential_of(request)
        if not credential and not asks_here(request):
            message = "A summary is made with the credential of whoever asks; without one, for this machine."
            raise ApiError(403, message, "forbidden")
        owner = owner_of(self._secret, credential)
        if owner not in self._verified and not asks_here(request):
            message = "Here summaries are paid for by the gateway: send a chat request with this credential first."
            raise ApiError(403, message, "forbidden")
        tenant = tenant_of(request, credential, self._secret, self._settings.tenant)
        key, (dialect, taken) = Key(tenant, name), await self._taken(request, tenant)
        known = await self._asked("summaries", self._store.summaries(key))
        record = await self._made(
            SummaryJob(
                key=key,
                conversation=taken.conversation,
                want=_whole(taken.conversation),
                model=taken.request.model,
                auth=auth_of(request),
                owner=owner,
                count=taken.count,
                policy="history",
                records=tuple(known),
                dialect=dialect,
            )
        )
        cached = any(record.id == other.id for other in known)
        return _json({**provenance(record), "content": record.content, "cached": cached})

    async def _delete(self, request: web.BaseRequest, name: str) -> web.Response:
        key = Key(self._caller(request).tenant, name)
        self._forgets.forget(key.tenant, key.conversation)  # first: what is being written would be kept after it
        await self._asked("delete", self._store.delete(key))
        self._audit_log.note(key, "conversation.deleted")
        return web.Response(status=204, headers=PRIVATE)

    async def _delete_all(self, request: web.BaseRequest) -> web.Response:
        tenant = self._caller(request).tenant
        self._forgets.forget(tenant)
        count = await self._asked("delete_tenant", self._store.delete_tenant(tenant))
        self._audit_log.note(Key(tenant, ""), "tenant.deleted", conversations=count)
        return _json({"deleted": count})

    async def _made(self, task: SummaryJob) -> SummaryRecord:
        try:
            return await self._asked("history", self._summaries.history(task))
        except SummarizerError as error:
            message = f"No summary could be made ({error.reason}); ask again later, or see `summarizers`."
            status = _STATUSES.get(error.reason, 502)
            raise ApiError(status, message, f"summarizer_{error.reason}") from error
        except RejectedError as error:
            message = f"What was written cannot stand as a summary ({error.reason}); ask again or of another model."
            raise ApiError(502, message, "summary_rejected") from error

    async def _taken(self, request: web.BaseRequest, tenant: str) -> tuple[str, ParsedRequest]:
        """The request in the body, and the API it speaks. Of two that look alike the headers tell: a credential is
        for the one that they name."""
        _, body = await Upload(request, self._settings.body_timeout).whole(self._settings.body_limit)
        for dialect in spoken(request.headers):
            try:
                taken = await self._request_parser.parse(dialect, body, tenant)
            except TooManyError as error:
                raise ApiError(
                    400, f"What is to be summarized is too much: {error}.", "too_many", error.what
                ) from error
            if taken is not None:
                return dialect, taken
        raise _unreadable(body)

    def _caller(self, request: web.BaseRequest) -> Caller:
        return caller_of(request, self._settings, self._secret)

    async def _asked(self, operation: str, answer: Awaitable[T]) -> T:
        return await asked(self._telemetry, operation, answer)


def named(target: str) -> tuple[str | None, str]:
    """The conversation that a raw target names and the page of it that is asked for; None for all of a tenant.

    The id is one segment of the path, percent-encoded once, or, as some ids cannot be in a path, the parameter `id`.
    Raises ApiError.
    """
    path, question, query = target.partition("?")
    if path != CONVERSATIONS and not path.startswith(CONVERSATIONS + "/"):
        raise _nowhere()
    try:
        given = parse_qsl(query, keep_blank_values=True, errors="surrogatepass", max_num_fields=_FIELDS)
        places = [unquote(part, errors="surrogatepass") for part in path.removeprefix(CONVERSATIONS).split("/")[1:]]
    except ValueError as error:
        raise ApiError(400, "The id is not UTF-8, percent-encoded.", "bad_conversation", "id") from error
    if question and [name for name, _ in given] != ["id"]:  # a misspelt one must not widen what is deleted
        raise ApiError(400, "The one parameter that is understood here is `id`.", "bad_parameter")
    if not given and not places:
        return None, ""
    name, *rest = [given[0][1], *places] if given else places
    if not name:
        raise ApiError(400, "The id of the conversation is empty.", "bad_conversation", "id")
    if rest[1:] or rest == [""]:
        raise _nowhere()
    return name, "".join(rest)


def provenance(record: SummaryRecord) -> dict[str, Any]:
    """What a summary was made of, by whom and at what cost, for a reader of JSON."""
    sources = [source.partition(":") for source in record.sources]
    return {
        "id": record.id,
        "kind": record.kind,
        "model": record.model,
        "policy": record.policy,
        "prompt": record.prompt,
        "generation": record.generation,
        "previous": record.previous,
        "created_at": moment(record.created_at),
        "tokens_before": record.tokens_before,
        "tokens_after": record.tokens_after,
        "rejected": record.rejected,
        "messages": [{"index": int(index), "digest": digest} for index, _, digest in sources],
        **bill(record.spent),
    }


def bill(spent: SummaryCost) -> dict[str, Any]:
    """What was paid for, for a reader of JSON."""
    usage = asdict(spent)
    return {"dollars": usage.pop("dollars"), "usage": usage}


def _sums(records: Sequence[SummaryRecord]) -> dict[str, SummaryCost]:
    """What these cost, by kind."""
    found: dict[str, SummaryCost] = {}
    for record in records:
        found[record.kind] = found.get(record.kind, SummaryCost()) + record.spent
    return found


def _whole(conversation: Conversation) -> Want:
    """A summary of all that was said."""
    said = conversation.blocks[conversation.head :]
    if not said:
        message = "There is nothing to summarize: all of it is system text."
        raise ApiError(400, message, "bad_body", "messages")
    return Want(said[0].anchor, said[-1].anchor, "asked")


def _unreadable(body: bytes) -> ApiError:
    """What is wrong with a body that is no request of an API."""
    try:
        spans = members(body)
    except UnreadableError:
        return ApiError(400, "The body is not a JSON object in which each key stands once.", "bad_body")
    try:
        start, end = spans["model"]
        msgspec.json.decode(body[start:end], type=str)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
        return ApiError(400, "`model` must be the name of a model.", "bad_body", "model")
    message = "`messages` (or `input`) must be a list of messages, at least one."
    return ApiError(400, message, "bad_body", "messages")


def _nowhere() -> ApiError:
    return ApiError(404, "There is no such page of a conversation.", "not_found")


def _json(found: Mapping[str, Any]) -> web.Response:
    return web.json_response(found, headers=PRIVATE)
