"""Narrows' own pages: for supervisors, for Prometheus, and for people who look up what was left out or summarized."""

from collections.abc import Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from proxy.admin.access import PRIVATE
from proxy.admin.conversations import CONVERSATIONS, ConversationPages
from proxy.admin.texts import TextPages
from proxy.archive.texts import Originals
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.gateway.downstream import header_safe
from proxy.identity import credential_of, is_local, opens, sender_of
from proxy.telemetry import Telemetry

_ORIGINALS, _ARTIFACTS = "/narrows/originals/", "/narrows/artifacts/"


class AdminPages:
    """Answers requests to Narrows itself."""

    def __init__(
        self,
        settings: Settings,
        telemetry: Telemetry,
        secret: bytes,
        originals: Originals | None = None,
        conversations: ConversationPages | None = None,
        texts: TextPages | None = None,
    ) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._secret = secret
        self._originals = originals
        self._conversations = conversations
        self._texts = texts
        self._fixed: Mapping[str, Callable[[web.BaseRequest], web.Response]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/metrics": self._metrics,
        }
        self.ready = True

    def has(self, path: str) -> bool:
        """Whether there is a page at this path."""
        return (
            path in self._fixed
            or path == CONVERSATIONS
            or path.startswith((_ORIGINALS, _ARTIFACTS, CONVERSATIONS + "/"))
        )

    async def answer(self, request: web.BaseRequest, path: str) -> web.Response:
        """The page. Raises ApiError."""
        if page := self._fixed.get(path):
            return page(request)
        if path.startswith(_ORIGINALS):
            return await self._original(request, path.removeprefix(_ORIGINALS))
        if self._conversations is None or self._texts is None:
            raise ApiError(404, "Nothing is kept of conversations: `mode` is off.", "no_conversations")
        if path.startswith(_ARTIFACTS):
            return await self._texts.artifact(request, path.removeprefix(_ARTIFACTS))
        return await self._conversations.answer(request)

    def _health(self, _: web.BaseRequest) -> web.Response:
        return web.json_response({"status": "ok"})

    def _readiness(self, _: web.BaseRequest) -> web.Response:
        if self.ready:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "shutting down"}, status=503)

    def _metrics(self, request: web.BaseRequest) -> web.Response:
        if not is_local(request) and not opens(self._settings.metrics_token, credential_of(request)):
            raise ApiError(403, "Metrics are for loopback or the `metrics_token`.", "forbidden")
        return web.Response(body=self._telemetry.metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _original(self, request: web.BaseRequest, ref: str) -> web.Response:
        if self._originals is None:
            message = "No originals are kept: the setting `originals` is not on, or `mode` is off."
            raise ApiError(404, message, "no_originals")
        if request.method not in ("GET", "HEAD"):
            raise ApiError(405, "Originals can only be read.", "method_not_allowed", headers={"Allow": "GET, HEAD"})
        tenant, credential = sender_of(request, self._settings, self._secret, "Originals")
        original = await self._originals.find(tenant, credential, ref, request.query.get("conversation") or None)
        headers = {
            "Content-Type": "text/plain; charset=utf-8",
            "x-narrows-conversation": header_safe(original.conversation),
            **PRIVATE,
        }
        return web.Response(body=original.text.encode("utf-8", "surrogatepass"), headers=headers)
