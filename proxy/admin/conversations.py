"""The pages of conversations: their texts, their summaries and what these cost, a summary for people, and deletion.

Laws
  A caller proves who it is, as `proxy.identity` says.
  What is missing, empty or owned by somebody else is answered in the same words.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import web

from policies.context import Want
from policies.dialects import TooManyError
from policies.model.rawjson import UnreadableError, members
from policies.model.summary_record import NO_USE, SummaryCost, SummaryRecord, SummaryStatus, statuses
from proxy.admin import export
from proxy.admin.deletion import Deletion
from proxy.admin.export import moment
from proxy.archive.archive import Archive
from proxy.archive.texts import Artifacts
from proxy.compaction.request_parser import RequestParser
from proxy.config import Settings
from proxy.config.routes import spoken
from proxy.errors import ApiError
from proxy.gateway.downstream import Upload
from proxy.identity import asks_here, auth_of, caller_of, credential_of, is_plain_key, owner_of, sender_of, tenant_of
from proxy.requests import ParsedRequest
from proxy.store import ARTIFACTS, MESSAGES, Key, Store, StoredText, StoreTrouble, TextKind, conversation_id
from proxy.store.cached import CachedStore
from proxy.summaries.jobs import SummaryJob
from proxy.summaries.maker import RejectedError, SummaryMaker
from proxy.summaries.payments import Payments
from proxy.summaries.summarizer import SummarizerError
from proxy.telemetry import Telemetry

CONVERSATIONS = "/narrows/conversations"
PRIVATE = MappingProxyType({"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
"""The headers of an answer for one reader."""
READ = ("GET", "HEAD")

_STATUSES = {"budget": 429, "timeout": 504, "busy": 503, "paused": 503, "stopped": 503}
"""The status where no summary was written, by the reason; 502 for all others."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BATCH = 64
"""Messages that are read and written at once."""
_QUERY_FIELDS = 8
"""Parameters of a query, at most."""
_PROVENANCE = (
    *("id", "kind", "model", "policy", "prompt", "generation", "previous"),
    *("created_at", "tokens_before", "tokens_after", "rejected"),
)

T = TypeVar("T")
Page = Callable[[web.BaseRequest, str], Awaitable[web.Response]]
"""Answers a request about the conversation of this name. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class ConversationPages:
    """Answers requests about conversations."""

    settings: Settings
    store: Store
    cached_store: CachedStore
    deletion: Deletion
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    """The key of the hashes that name tenants and owners."""
    maker: SummaryMaker
    request_parser: RequestParser
    payments: Payments
    archive: Archive
    clock: Callable[[], float]

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The page that the target of the request names. Raises ApiError."""
        name, page = parse_target(request.raw_path)
        if name is None:
            _allow_only(request, ("DELETE",))
            return await self._delete_all(request)
        pages: Mapping[str, Mapping[str, Page]] = {
            "": {**dict.fromkeys(READ, self._summary), "DELETE": self._delete},
            "artifacts": dict.fromkeys(READ, self._artifacts),
            "history": dict.fromkeys(READ, self._history),
            "summaries": dict.fromkeys(READ, self._list),
            "summary": {"POST": self._summarize},
        }
        if page not in pages:
            raise _no_page()
        _allow_only(request, tuple(pages[page]))
        return await pages[page][request.method](request, name)

    async def artifact(self, request: web.BaseRequest, digest: str) -> web.Response:
        """The text of this digest, from one conversation or from all that the credential sent. Raises ApiError."""
        _allow_only(request, READ)
        artifacts, text = self._artifact_archive(), None
        if _DIGEST.fullmatch(digest):
            text = await self._ask("artifact", self._find(request, artifacts, digest))
        if text is None:
            raise ApiError(404, "Nothing is kept for this digest.", "not_found")
        headers = {"Content-Type": "text/plain; charset=utf-8", **PRIVATE}
        return web.Response(body=text.encode("utf-8", "surrogatepass"), headers=headers)

    async def _summary(self, request: web.BaseRequest, name: str) -> web.Response:
        """The summary that stands in the newest request, flat and below `agent`, nulls where none does; and what became
        of each."""
        caller = caller_of(request, self.settings, self.secret)
        key = Key(caller.tenant, name)
        stored = await self._ask("summaries", self.store.summaries(key))
        visible = caller.visible((record.owner, record) for record in stored)
        seen = {record.id: record for record in visible if record.kind == "compaction"}
        if not seen:
            raise _nothing()
        status_of = await self._statuses(key, list(seen.values()))
        record = next((seen[id] for id, status in status_of.items() if status.state == "stands"), None)
        text, at = (record.content, moment(record.created_at)) if record else (None, None)
        count = len(record.sources) if record else 0
        agent = {"summary": text, "summaryMessageCount": count, "summaryUpdatedAt": at}
        rows = [{"id": id, **status_of[id]._asdict(), "created_at": moment(seen[id].created_at)} for id in seen]
        return _json_page({"id": name, "summary": text, "summaryUpdatedAt": at, "agent": agent, "summaries": rows})

    async def _statuses(self, key: Key, records: Sequence[SummaryRecord]) -> Mapping[str, SummaryStatus]:
        """What became of the summaries for the prompt, by id. Raises ApiError."""
        return await self._ask("newest_step", statuses_in(self.store, key, records, self.clock()))

    async def _artifacts(self, request: web.BaseRequest, name: str) -> web.Response:
        """The list of outputs of tools, without their texts."""
        self._artifact_archive()
        _, listed = await self._ask("artifacts", self._seen(request, name, ARTIFACTS))
        if not listed:
            raise _nothing()
        rows = [
            {
                **{field: artifact.about[field] for field in ("digest", "tool", "characters")},
                "message": _message(str(artifact.about["message"])),
                "text_digest": artifact.about["text_digest"],
                "first_seen": moment(float(artifact.about["at"])),
            }
            for artifact in listed
        ]
        return _json_page({"conversation": name, "artifacts": rows})

    async def _history(self, request: web.BaseRequest, name: str) -> web.Response:
        """The log of all messages, as lines of JSON or as Markdown."""
        if self.archive.message_log is None:
            raise ApiError(404, "No log is kept: the setting `history` is not on, or `mode` is off.", "no_history")
        key, listed = await self._ask("history", self._seen(request, name, MESSAGES))
        if not listed:
            raise _nothing()
        if "text/markdown" in request.headers.get("Accept", ""):
            head, body, content_type = export.markdown_head, export.markdown, "text/markdown; charset=utf-8"
        else:
            head, body, content_type = export.json_head, export.json_lines, "application/x-ndjson"
        pieces = [head(name, listed)]
        for start in range(0, len(listed), _BATCH):
            batch = listed[start : start + _BATCH]
            names = [each.name for each in batch]
            texts = await self._ask("history", self.store.texts(key, MESSAGES, names))
            # those that were deleted meanwhile are left out
            complete = [StoredText(each.name, texts[each.name], each.about) for each in batch if each.name in texts]
            pieces.append(await asyncio.to_thread(body, complete))
        return web.Response(body=b"".join(pieces), headers={"Content-Type": content_type, "Vary": "Accept", **PRIVATE})

    async def _find(self, request: web.BaseRequest, artifacts: Artifacts, digest: str) -> str | None:
        """Searches what the caller may see of one conversation, or all that its credential sent."""
        name = conversation_id(request.query.get("conversation", ""))
        if not name:
            tenant, credential = sender_of(request, self.settings, self.secret, "Artifacts")
            return await artifacts.find(tenant, owner_of(self.secret, credential), digest)
        key, listed = await self._seen(request, name, ARTIFACTS)
        names = [each.name for each in listed if each.about["digest"] == digest]
        texts = await self.store.texts(key, ARTIFACTS, names[:1])
        return next(iter(texts.values()), None)

    async def _seen(self, request: web.BaseRequest, name: str, kind: TextKind) -> tuple[Key, Sequence[StoredText]]:
        """The conversation, and its texts of one kind that the caller may see, without their content."""
        caller = caller_of(request, self.settings, self.secret)
        key = Key(caller.tenant, name)
        return key, caller.visible((str(each.about["owner"]), each) for each in await self.store.list_texts(key, kind))

    def _artifact_archive(self) -> Artifacts:
        if self.archive.artifacts is None:
            message = "No artifacts are kept: the setting `artifacts` is not on, or `mode` is off."
            raise ApiError(404, message, "no_artifacts")
        return self.archive.artifacts

    async def _list(self, request: web.BaseRequest, name: str) -> web.Response:
        caller = caller_of(request, self.settings, self.secret)
        key = Key(caller.tenant, name)
        stored = await self._ask("summaries", self.store.summaries(key))
        records = caller.visible((record.owner, record) for record in stored)
        costs: dict[str, SummaryCost] = {}
        if caller.sees_all:
            costs.update(await self._ask("spent", self.store.spent(key)))
        else:
            for record in records:
                costs[record.kind] = costs.get(record.kind, SummaryCost()) + record.spent
        if not records and not costs:
            raise ApiError(404, "No summaries are kept of this conversation.", "not_found")
        status_of = await self._statuses(key, records)
        rows = [{**provenance(record, status_of.get(record.id)), "content": record.content} for record in records]
        bills = {kind: _bill(cost) for kind, cost in costs.items()}
        return _json_page({"conversation": name, "summaries": rows, "spent": bills})

    async def _summarize(self, request: web.BaseRequest, name: str) -> web.Response:
        """A summary for people: the stored one of exactly these messages, or a new one at the caller's cost."""
        credential, is_here = credential_of(request), asks_here(request, self.settings.host)
        if not credential and not is_here:
            message = "A summary is made with the credential of whoever asks; without one, for this machine."
            raise ApiError(403, message, "forbidden")
        if not self.settings.summaries:
            raise ApiError(404, "No summaries are made: the setting `summaries` is not on.", "no_summaries")
        payment = self.payments.possible(credential, is_plain_key(request), is_here)
        tenant = tenant_of(request, credential, self.secret, self.settings.tenant)
        key, (dialect, parsed) = Key(tenant, name), await self._parse(request, tenant)
        stored = await self._ask("summaries", self.store.summaries(key))
        blocks = parsed.conversation.blocks[parsed.conversation.head :]
        if not blocks:
            message = "There is nothing to summarize: all of it is system text."
            raise ApiError(400, message, "bad_body", "messages")
        job = SummaryJob(
            key=key,
            conversation=parsed.conversation,
            want=Want(blocks[0].anchor, blocks[-1].anchor, "asked"),
            model=parsed.request.model,
            auth=auth_of(request),
            owner=self.payments.owner(credential),
            payment=payment,
            count=parsed.count,
            policy="history",
            records=tuple(stored),
            dialect=dialect,
        )
        is_verified = is_here or self.payments.states.is_accepted(job.owner)
        if not (is_verified or await self.cached_store.is_owner(key, job.owner)) or not self.maker.may_ask(job):
            message = (
                "No summary can be made with your credential now: it must be a plain API key (or one for which the "
                "gateway's own key is used), and the upstream must have accepted it in a chat request here."
            )
            raise ApiError(403, message, "forbidden")
        try:
            record = await self._ask("history", self.maker.history(job))
        except RejectedError as error:
            message = f"What was written cannot stand as a summary ({error.reason}); ask again or of another model."
            raise ApiError(502, message, "summary_rejected") from error
        except SummarizerError as error:
            message = f"No summary could be made ({error.reason}); ask again later, or see `summarizers`."
            status = _STATUSES.get(error.reason, 502)
            raise ApiError(status, message, f"summarizer_{error.reason}") from error
        self.cached_store.own(key, job.owner)
        cached = any(record.id == other.id for other in stored)
        return _json_page({**provenance(record), "content": record.content, "cached": cached})

    async def _delete(self, request: web.BaseRequest, name: str) -> web.Response:
        caller = caller_of(request, self.settings, self.secret)
        key = Key(caller.tenant, name)
        owner = None if caller.sees_all else caller.owner
        if not await self._ask("delete", self.deletion.conversation(key, owner)) and owner is not None:
            raise _nothing()
        return web.Response(status=204, headers=PRIVATE)

    async def _delete_all(self, request: web.BaseRequest) -> web.Response:
        caller = caller_of(request, self.settings, self.secret)
        owner = None if caller.sees_all else caller.owner
        count = await self._ask("delete_tenant", self.deletion.everything(caller.tenant, owner))
        return _json_page({"deleted": count})

    async def _parse(self, request: web.BaseRequest, tenant: str) -> tuple[str, ParsedRequest]:
        """The request in the body, and its API. Of two APIs that look alike the headers tell: a credential is for the
        one that they name. Raises ApiError."""
        settings = self.settings
        _, body = await Upload(request, settings.body_timeout).whole(settings.body_limit)
        for dialect in spoken(request.headers):
            try:
                parsed = await self.request_parser.parse(dialect, body, tenant)
            except TooManyError as error:
                message = f"What is to be summarized is too much: {error}."
                raise ApiError(400, message, "too_many", error.what) from error
            if parsed is not None:
                return dialect, parsed
        try:
            start, end = members(body)["model"]
            msgspec.json.decode(body[start:end], type=str)
        except UnreadableError as error:
            message = "The body is not a JSON object in which each key stands once."
            raise ApiError(400, message, "bad_body") from error
        except (KeyError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, "`model` must be the name of a model.", "bad_body", "model") from error
        message = "`messages` (or `input`) must be a list of messages, at least one."
        raise ApiError(400, message, "bad_body", "messages")

    async def _ask(self, operation: str, answer: Awaitable[T]) -> T:
        """What the store answers. Raises ApiError where it is in trouble."""
        try:
            return await answer
        except StoreTrouble as error:
            self.telemetry.metrics.store_trouble(operation)
            message = "The store is in trouble, so this cannot be done now; ask again in a moment."
            raise ApiError(503, message, "store_trouble", headers={"Retry-After": "5"}) from error


def parse_target(target: str) -> tuple[str | None, str]:
    """The conversation that a raw target names, and the name of its page; None for all conversations of a tenant.

    The id is one segment of the path, percent-encoded once, or, as some ids cannot be in a path, the parameter `id`.
    Raises ApiError.
    """
    path, question, query = target.partition("?")
    if path != CONVERSATIONS and not path.startswith(CONVERSATIONS + "/"):
        raise _no_page()
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="surrogatepass", max_num_fields=_QUERY_FIELDS)
        places = [unquote(part, errors="surrogatepass") for part in path.removeprefix(CONVERSATIONS).split("/")[1:]]
    except ValueError as error:
        raise ApiError(400, "The id is not UTF-8, percent-encoded.", "bad_conversation", "id") from error
    if question and [name for name, _ in fields] != ["id"]:  # a misspelt one must not widen what is deleted
        raise ApiError(400, "The one parameter that is understood here is `id`.", "bad_parameter")
    if not fields and not places:
        return None, ""
    name, *rest = [fields[0][1], *places] if fields else places
    if not name:
        raise ApiError(400, "The id of the conversation is empty.", "bad_conversation", "id")
    if rest[1:] or rest == [""]:
        raise _no_page()
    return conversation_id(name), "".join(rest)


async def statuses_in(
    store: Store, key: Key, records: Sequence[SummaryRecord], now: float
) -> Mapping[str, SummaryStatus]:
    """What became of the summaries for the prompt of a conversation, by id: as its newest request says. Raises
    StoreTrouble."""
    step = await store.newest_step(key)
    use, at = (step.sent.use, step.at) if step is not None and step.sent is not None else (NO_USE, 0.0)
    return statuses(records, use, at, now)


def provenance(record: SummaryRecord, status: SummaryStatus | None = None) -> dict[str, Any]:
    """What a summary was written from, by which model and at what cost, and what became of it, as JSON."""
    return {
        **{name: getattr(record, name) for name in _PROVENANCE},
        **({"state": status.state, "reason": status.reason} if status else {}),
        "created_at": moment(record.created_at),
        "messages": [_message(source) for source in record.sources],
        **_bill(record.spent),
    }


def _message(source: str) -> dict[str, Any]:
    """A message, given as `INDEX:DIGEST`."""
    index, _, digest = source.partition(":")
    return {"index": int(index), "digest": digest}


def _bill(cost: SummaryCost) -> dict[str, Any]:
    usage = asdict(cost)
    del usage["dollars"]
    return {"dollars": cost.known_dollars, "usage": usage}


def _no_page() -> ApiError:
    return ApiError(404, "There is no such page of a conversation.", "not_found")


def _nothing() -> ApiError:
    return ApiError(404, "Nothing is kept of this conversation.", "not_found")


def _allow_only(request: web.BaseRequest, methods: Sequence[str]) -> None:
    """Raises ApiError where the page is requested with another method."""
    if request.method not in methods:
        allow = ", ".join(methods)
        message = f"This page can only be asked with {allow}."
        raise ApiError(405, message, "method_not_allowed", headers={"Allow": allow})


def _json_page(content: Mapping[str, Any]) -> web.Response:
    """An answer in JSON for one reader."""
    return web.json_response(content, headers=PRIVATE)
