"""The pages that show texts of conversations: the summary that counts, outputs of tools, and the log.

Law: what is missing, empty or owned by somebody else is answered in the same words.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from proxy.admin import export
from proxy.admin.access import PRIVATE, READ, Access, allow_only, json_page
from proxy.admin.export import moment
from proxy.archive.archive import Archive
from proxy.archive.texts import Artifacts
from proxy.errors import ApiError
from proxy.identity import Caller, owner_of, sender_of
from proxy.store import ARTIFACTS, MESSAGES, Key, StoredText, TextKind

_DIGEST = re.compile(r"[0-9a-f]{64}")
_BATCH = 64
"""Messages that are read and written at once."""


@dataclass(frozen=True, slots=True)
class TextPages:
    """Answers requests for stored texts."""

    _access: Access
    _archive: Archive
    _clock: Callable[[], float]

    async def artifact(self, request: web.BaseRequest, digest: str) -> web.Response:
        """The text of this digest, from one conversation or from all that the credential sent. Raises ApiError."""
        allow_only(request, READ)
        artifacts, text = self._artifacts(), None
        if _DIGEST.fullmatch(digest):
            text = await self._access.ask("artifact", self._find(request, artifacts, digest))
        if text is None:
            raise ApiError(404, "Nothing is kept for this digest.", "not_found")
        headers = {"Content-Type": "text/plain; charset=utf-8", **PRIVATE}
        return web.Response(body=text.encode("utf-8", "surrogatepass"), headers=headers)

    async def summary(self, request: web.BaseRequest, name: str) -> web.Response:
        """The summary that stands for old turns now, flat and below `agent`; nulls where it is too old or rejected."""
        caller = self._access.caller(request)
        records = await self._access.ask("summaries", self._access.store.summaries(Key(caller.tenant, name)))
        seen = [
            record for record in caller.visible((each.owner, each) for each in records) if record.kind == "compaction"
        ]
        if not seen:
            raise _nothing()
        since = self._clock() - self._access.settings.summary_ttl
        record = next((each for each in reversed(seen) if not each.rejected and each.created_at >= since), None)
        text, at = (record.content, moment(record.created_at)) if record else (None, None)
        count = len(record.sources) if record else 0
        agent = {"summary": text, "summaryMessageCount": count, "summaryUpdatedAt": at}
        return json_page({"id": name, "summary": text, "summaryUpdatedAt": at, "agent": agent})

    async def artifacts(self, request: web.BaseRequest, name: str) -> web.Response:
        """The list of outputs of tools, without their texts."""
        self._artifacts()
        caller = self._access.caller(request)
        listed = await self._access.ask("artifacts", self._seen(caller, Key(caller.tenant, name), ARTIFACTS))
        if not listed:
            raise _nothing()
        rows = []
        for about in (artifact.about for artifact in listed):
            index, _, message_digest = str(about["message"]).partition(":")
            row = {
                **{field: about[field] for field in ("digest", "tool", "characters")},
                "message": {"index": int(index), "digest": message_digest},
                "text_digest": about["text_digest"],
                "first_seen": moment(float(about["at"])),
            }
            rows.append(row)
        return json_page({"conversation": name, "artifacts": rows})

    async def history(self, request: web.BaseRequest, name: str) -> web.Response:
        """The log of all messages, as lines of JSON or as Markdown."""
        if self._archive.message_log is None:
            raise ApiError(404, "No log is kept: the setting `history` is not on, or `mode` is off.", "no_history")
        caller = self._access.caller(request)
        key = Key(caller.tenant, name)
        listed = await self._access.ask("history", self._seen(caller, key, MESSAGES))
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
            texts = await self._access.ask("history", self._access.store.texts(key, MESSAGES, names))
            # those that were deleted meanwhile are left out
            complete = [StoredText(each.name, texts[each.name], each.about) for each in batch if each.name in texts]
            pieces.append(await asyncio.to_thread(body, complete))
        return web.Response(body=b"".join(pieces), headers={"Content-Type": content_type, "Vary": "Accept", **PRIVATE})

    async def _find(self, request: web.BaseRequest, artifacts: Artifacts, digest: str) -> str | None:
        """Searches what the caller may see of one conversation, or all that its credential sent."""
        name = request.query.get("conversation")
        if not name:
            secret = self._access.secret
            tenant, credential = sender_of(request, self._access.settings, secret, "Artifacts")
            return await artifacts.find(tenant, owner_of(secret, credential), digest)
        caller = self._access.caller(request)
        key = Key(caller.tenant, name)
        listed = await self._seen(caller, key, ARTIFACTS)
        names = [each.name for each in listed if each.about["digest"] == digest]
        texts = await self._access.store.texts(key, ARTIFACTS, names[:1])
        return next(iter(texts.values()), None)

    async def _seen(self, caller: Caller, key: Key, kind: TextKind) -> Sequence[StoredText]:
        """The texts of one kind that the caller may see, without their content."""
        listed = await self._access.store.list_texts(key, kind)
        return caller.visible((str(each.about["owner"]), each) for each in listed)

    def _artifacts(self) -> Artifacts:
        if self._archive.artifacts is None:
            message = "No artifacts are kept: the setting `artifacts` is not on, or `mode` is off."
            raise ApiError(404, message, "no_artifacts")
        return self._archive.artifacts


def _nothing() -> ApiError:
    return ApiError(404, "Nothing is kept of this conversation.", "not_found")
