"""What is kept of conversations, read by people: the summary that counts, what tools returned, and the log.

Law: what is missing, empty or somebody else's is told in the same words.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from aiohttp import web

from policies.model.summary_record import SummaryRecord
from proxy.admin import export as logbook
from proxy.admin.export import moment
from proxy.archive.archive import Archive
from proxy.archive.artifacts import Artifacts
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.identity import Caller, caller_of, owner_of, sender_of
from proxy.store import Key, Leaf, Shelf, Store, StoreTrouble
from proxy.telemetry import Telemetry

PRIVATE = MappingProxyType({"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
"""The headers of what is for one reader."""
READ = ("GET", "HEAD")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_AT_ONCE = 64
"""Messages that are read and written in one go."""

T = TypeVar("T")
Page = Callable[[web.BaseRequest, str], Awaitable[web.Response]]


class Reading:
    """Answers what people ask about what is kept."""

    def __init__(
        self, settings: Settings, store: Store, archive: Archive, telemetry: Telemetry, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._store = store
        self._archive = archive
        self._telemetry = telemetry
        self._clock = clock
        self.pages: Mapping[str, tuple[tuple[str, ...], Page]] = {
            "": (READ, self._state),
            "artifacts": (READ, self._artifacts),
            "history": (READ, self._history),
        }
        """By their names below a conversation."""

    async def artifact(self, request: web.BaseRequest, digest: str) -> web.Response:
        """The text of this digest. Raises ApiError."""
        only(request, READ)
        artifacts, name = self._kept(), request.query.get("conversation")
        text = None
        if _DIGEST.fullmatch(digest):
            found = self._in(request, name, digest) if name else self._sent(request, artifacts, digest)
            text = await self._asked("artifact", found)
        if text is None:
            raise ApiError(404, "Nothing is kept for this digest.", "not_found")
        headers = {"Content-Type": "text/plain; charset=utf-8", **PRIVATE}
        return web.Response(body=text.encode("utf-8", "surrogatepass"), headers=headers)

    async def _sent(self, request: web.BaseRequest, artifacts: Artifacts, digest: str) -> str | None:
        """In whatever this credential sent."""
        tenant, credential = sender_of(request, self._settings, self._archive.secret, "Artifacts")
        return await artifacts.find(tenant, owner_of(self._archive.secret, credential), digest)

    async def _in(self, request: web.BaseRequest, name: str, digest: str) -> str | None:
        """In what the caller may see of a conversation."""
        caller = self._caller(request)
        key = Key(caller.tenant, name)
        leaves = await self._seen(caller, key, "artifact")
        names = [leaf.name for leaf in leaves if leaf.about["digest"] == digest]
        texts = await self._store.texts(key, "artifact", names[:1])
        return next(iter(texts.values()), None)

    async def _state(self, request: web.BaseRequest, name: str) -> web.Response:
        caller = self._caller(request)
        records = await self._asked("summaries", self._store.summaries(Key(caller.tenant, name)))
        seen = [each for each in caller.seen((each.owner, each) for each in records) if each.kind == "compaction"]
        if not seen:
            raise _nothing()
        since = self._clock() - self._settings.summary_ttl
        sound = [record for record in seen if not record.rejected and record.created_at >= since]
        return web.json_response({"id": name, **_told(sound[-1] if sound else None)}, headers=PRIVATE)

    async def _artifacts(self, request: web.BaseRequest, name: str) -> web.Response:
        self._kept()
        caller = self._caller(request)
        leaves = await self._asked("artifacts", self._seen(caller, Key(caller.tenant, name), "artifact"))
        if not leaves:
            raise _nothing()
        return web.json_response({"conversation": name, "artifacts": list(map(_row, leaves))}, headers=PRIVATE)

    async def _history(self, request: web.BaseRequest, name: str) -> web.Response:
        if self._archive.chronicle is None:
            raise ApiError(404, "No log is kept: the setting `history` is not on, or `mode` is off.", "no_history")
        caller = self._caller(request)
        key = Key(caller.tenant, name)
        leaves = await self._asked("history", self._seen(caller, key, "message"))
        if not leaves:
            raise _nothing()
        as_markdown = "text/markdown" in request.headers.get("Accept", "")
        head, body = (
            (logbook.markdown_head, logbook.markdown) if as_markdown else (logbook.json_head, logbook.json_lines)
        )
        written = [head(name, leaves)]
        for start in range(0, len(leaves), _AT_ONCE):
            texts = await self._asked("history", self._whole(key, leaves[start : start + _AT_ONCE]))
            written.append(await asyncio.to_thread(body, texts))
        kind = "text/markdown; charset=utf-8" if as_markdown else "application/x-ndjson"
        return web.Response(body=b"".join(written), headers={"Content-Type": kind, "Vary": "Accept", **PRIVATE})

    async def _whole(self, key: Key, leaves: Sequence[Leaf]) -> list[Leaf]:
        """With their texts, as far as these are there still."""
        texts = await self._store.texts(key, "message", [leaf.name for leaf in leaves])
        return [Leaf(leaf.name, texts[leaf.name], leaf.about) for leaf in leaves if leaf.name in texts]

    async def _seen(self, caller: Caller, key: Key, shelf: Shelf) -> list[Leaf]:
        """What the caller may see of a shelf, without the texts."""
        leaves = await self._store.leaves(key, shelf)
        return caller.seen((str(leaf.about["owner"]), leaf) for leaf in leaves)

    def _caller(self, request: web.BaseRequest) -> Caller:
        return caller_of(request, self._settings, self._archive.secret)

    def _kept(self) -> Artifacts:
        if self._archive.artifacts is None:
            message = "No artifacts are kept: the setting `artifacts` is not on, or `mode` is off."
            raise ApiError(404, message, "no_artifacts")
        return self._archive.artifacts

    async def _asked(self, operation: str, answer: Awaitable[T]) -> T:
        return await asked(self._telemetry, operation, answer)


async def asked(telemetry: Telemetry, operation: str, answer: Awaitable[T]) -> T:
    """What the store answers. Raises ApiError where it is in trouble."""
    try:
        return await answer
    except StoreTrouble as error:
        telemetry.metrics.store_trouble(operation)
        message = "The store is in trouble, so this cannot be done now; ask again in a moment."
        raise ApiError(503, message, "store_trouble") from error


def only(request: web.BaseRequest, methods: Sequence[str]) -> None:
    """Raises ApiError where a page is asked in another way."""
    if request.method not in methods:
        allow = ", ".join(methods)
        message = f"This page can only be asked with {allow}."
        raise ApiError(405, message, "method_not_allowed", headers={"Allow": allow})


def _told(record: SummaryRecord | None) -> Mapping[str, Any]:
    """The summary that counts, flat and below `agent`."""
    summary, at = (record.content, moment(record.created_at)) if record else (None, None)
    count = len(record.sources) if record else 0
    agent = {"summary": summary, "summaryMessageCount": count, "summaryUpdatedAt": at}
    return {"summary": summary, "summaryUpdatedAt": at, "agent": agent}


def _row(leaf: Leaf) -> Mapping[str, Any]:
    """An artifact, for a reader of JSON."""
    told = leaf.about
    index, _, digest = str(told["message"]).partition(":")
    return {
        "digest": told["digest"],
        "tool": told["tool"],
        "characters": told["characters"],
        "message": {"index": int(index), "digest": digest},
        "said": told["said"],
        "first_seen": moment(float(told["at"])),
    }


def _nothing() -> ApiError:
    return ApiError(404, "Nothing is kept of this conversation.", "not_found")
