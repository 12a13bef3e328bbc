"""The pages of a conversation's texts: outputs of tools, and the log of all messages."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from proxy.admin import export
from proxy.admin.answers import PRIVATE, PageParts, json_page, message_of, nothing
from proxy.admin.export import moment
from proxy.admin.targets import READ, allow_only
from proxy.archive.archive import Archive
from proxy.archive.sent_requests import is_message
from proxy.archive.texts import Artifacts
from proxy.errors import ApiError
from proxy.identity import owner_of, sender_of
from proxy.store import ARTIFACTS, MESSAGES, Key, StoredText, TextKind, conversation_id

_DIGEST = re.compile(r"[0-9a-f]{64}")
_BATCH = 64
"""Messages that are read and written at once."""


@dataclass(frozen=True, slots=True)
class TextPages:
    """Answers requests for the texts of conversations."""

    parts: PageParts
    archive: Archive

    async def artifact(self, request: web.BaseRequest, digest: str) -> web.Response:
        """The text of this digest, from one conversation or from all that the credential sent. Raises ApiError."""
        allow_only(request, READ)
        artifacts, text = self._artifact_archive(), None
        if _DIGEST.fullmatch(digest):
            text = await self.parts.ask("artifact", self._find(request, artifacts, digest))
        if text is None:
            raise ApiError(404, "Nothing is kept for this digest.", "not_found")
        headers = {"Content-Type": "text/plain; charset=utf-8", **PRIVATE}
        return web.Response(body=text.encode("utf-8", "surrogatepass"), headers=headers)

    async def artifacts(self, request: web.BaseRequest, name: str) -> web.Response:
        """The list of outputs of tools, without their texts."""
        self._artifact_archive()
        _, listed = await self.parts.ask("artifacts", self._seen(request, name, ARTIFACTS))
        if not listed:
            raise nothing()
        rows = [
            {
                **{field: artifact.about[field] for field in ("digest", "tool", "characters")},
                "message": message_of(str(artifact.about["message"])),
                "text_digest": artifact.about["text_digest"],
                "first_seen": moment(float(artifact.about["at"])),
            }
            for artifact in listed
        ]
        return json_page({"conversation": name, "artifacts": rows})

    async def history(self, request: web.BaseRequest, name: str) -> web.Response:
        """The log of all messages, as lines of JSON or as Markdown."""
        if self.archive.message_log is None:
            raise ApiError(404, "No log is kept: the setting `history` is not on, or `mode` is off.", "no_history")
        key, stored = await self.parts.ask("history", self._seen(request, name, MESSAGES))
        listed = [*filter(is_message, stored)]
        if not listed:
            raise nothing()
        if "text/markdown" in request.headers.get("Accept", ""):
            head, body, content_type = export.markdown_head, export.markdown, "text/markdown; charset=utf-8"
        else:
            head, body, content_type = export.json_head, export.json_lines, "application/x-ndjson"
        pieces = [head(name, listed)]
        for start in range(0, len(listed), _BATCH):
            batch = listed[start : start + _BATCH]
            names = [each.name for each in batch]
            texts = await self.parts.ask("history", self.parts.store.texts(key, MESSAGES, names))
            # those that were deleted meanwhile are left out
            complete = [StoredText(each.name, texts[each.name], each.about) for each in batch if each.name in texts]
            pieces.append(await asyncio.to_thread(body, complete))
        return web.Response(body=b"".join(pieces), headers={"Content-Type": content_type, "Vary": "Accept", **PRIVATE})

    async def _find(self, request: web.BaseRequest, artifacts: Artifacts, digest: str) -> str | None:
        """Searches what the caller may see of one conversation, or all that its credential sent."""
        name = conversation_id(request.query.get("conversation", ""))
        if not name:
            tenant, credential = sender_of(request, self.parts.settings, self.parts.secret, "Artifacts")
            return await artifacts.find(tenant, owner_of(self.parts.secret, credential), digest)
        key, listed = await self._seen(request, name, ARTIFACTS)
        names = [each.name for each in listed if each.about["digest"] == digest]
        texts = await self.parts.store.texts(key, ARTIFACTS, names[:1])
        return next(iter(texts.values()), None)

    async def _seen(self, request: web.BaseRequest, name: str, kind: TextKind) -> tuple[Key, Sequence[StoredText]]:
        """The conversation, and its texts of one kind that the caller may see, without their content."""
        caller = self.parts.caller(request)
        key = Key(caller.tenant, name)
        return key, caller.visible(
            (str(each.about["owner"]), each) for each in await self.parts.store.list_texts(key, kind)
        )

    def _artifact_archive(self) -> Artifacts:
        if self.archive.artifacts is None:
            message = "No artifacts are kept: the setting `artifacts` is not on, or `mode` is off."
            raise ApiError(404, message, "no_artifacts")
        return self.archive.artifacts
