"""The pages of outputs of tools, as they were."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from proxy.addons.pages.answers import PRIVATE, PageParts, json_page, message_of, nothing
from proxy.addons.pages.export import moment
from proxy.addons.pages.targets import READ, allow_only
from proxy.errors import ApiError
from proxy.memory import ARTIFACTS, Key, StoredText, conversation_id

if TYPE_CHECKING:
    from proxy.addons.archive.texts import Artifacts

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ArtifactPages:
    """Answers requests for outputs of tools."""

    parts: PageParts
    artifacts: "Artifacts | None"

    async def text(self, request: web.BaseRequest, digest: str) -> web.Response:
        """The text of this digest, from one conversation or from all that the credential sent. Raises ApiError."""
        allow_only(request, READ)
        artifacts, text = self._artifact_archive(), None
        if _DIGEST.fullmatch(digest):
            text = await self.parts.ask("artifact", self._find(request, artifacts, digest))
        if text is None:
            raise ApiError(404, "No artifact is stored for this digest.", "not_found")
        headers = {"Content-Type": "text/plain; charset=utf-8", **PRIVATE}
        return web.Response(body=text.encode("utf-8", "surrogatepass"), headers=headers)

    async def listed(self, request: web.BaseRequest, name: str) -> web.Response:
        """The list of outputs of tools, without their texts."""
        self._artifact_archive()
        _, listed = await self.parts.ask("artifacts", self._seen(request, name))
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

    async def _find(self, request: web.BaseRequest, artifacts: "Artifacts", digest: str) -> str | None:
        """Searches what the caller may see of one conversation, or all that its credential sent."""
        name = conversation_id(request.query.get("conversation", ""))
        if not name:
            self.parts.permit(request, "artifacts")
            identity = self.parts.who(request)
            return await artifacts.find(identity.tenant, identity.owner, digest)
        key, listed = await self._seen(request, name)
        names = [each.name for each in listed if each.about["digest"] == digest]
        texts = await self.parts.store.texts(key, ARTIFACTS, names[:1])
        return next(iter(texts.values()), None)

    async def _seen(self, request: web.BaseRequest, name: str) -> tuple[Key, Sequence[StoredText]]:
        """The conversation, and its outputs that the caller may see, without their texts."""
        grant = self.parts.permit(request, "conversations")
        key = Key(self.parts.who(request).tenant, name)
        return key, grant.visible(
            (str(each.about["owner"]), each) for each in await self.parts.store.list_texts(key, ARTIFACTS)
        )

    def _artifact_archive(self) -> "Artifacts":
        if self.artifacts is None:
            message = "Artifacts are not stored: `artifacts` is not set, or `mode` is off."
            raise ApiError(404, message, "no_artifacts")
        return self.artifacts
