"""The pages of conversations: which of them a request names, and deletion.

Laws
  A caller proves who it is, as `proxy.identity` says.
  What is missing, empty or owned by somebody else is answered in the same words.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from proxy.admin.answers import PRIVATE, PageParts, json_page, nothing
from proxy.admin.artifacts import ArtifactPages
from proxy.admin.deletion import Deletion
from proxy.admin.live import LivePages, wants_page
from proxy.admin.log_pages import LogPages
from proxy.admin.summaries import SummaryPages
from proxy.admin.targets import CONVERSATIONS, READ, allow_only, no_page, parse_target
from proxy.store import Key

Page = Callable[[web.BaseRequest, str], Awaitable[web.Response]]
"""Answers a request about the conversation of this name. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class ConversationPages:
    """Answers requests about conversations."""

    parts: PageParts
    deletion: Deletion
    summaries: SummaryPages
    artifacts: ArtifactPages
    live: LivePages
    log_pages: LogPages

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The page that the target of the request names. Raises ApiError."""
        is_read = request.method in READ
        if is_read and request.path == CONVERSATIONS and "id" not in request.query:
            return await self.live.listed(request)
        name, page = parse_target(request.raw_path, ("tenant", "branch", "round") if is_read else ())
        if name is None:
            allow_only(request, (*READ, "DELETE"))
            return await self._delete_all(request)
        pages: Mapping[str, Mapping[str, Page]] = {
            "": {**dict.fromkeys(READ, self._one), "DELETE": self._delete},
            "artifacts": dict.fromkeys(READ, self.artifacts.listed),
            "history": dict.fromkeys(READ, self.log_pages.history),
            "summaries": dict.fromkeys(READ, self.summaries.listed),
            "summary": {"POST": self.summaries.summarize},
            "requests": dict.fromkeys(READ, self.log_pages.requests),
            "requests/": dict.fromkeys(READ, self.log_pages.request),
            "session": dict.fromkeys(READ, self.log_pages.session),
            "changes": dict.fromkeys(READ, self.log_pages.changes),
        }
        first, slash, _ = page.partition("/")
        page = first + slash
        if page not in pages:
            raise no_page()
        allow_only(request, tuple(pages[page]))
        return await pages[page][request.method](request, name)

    async def _one(self, request: web.BaseRequest, name: str) -> web.Response:
        """One conversation: request by request, and the summary that stands in the newest one."""
        if wants_page(request):
            return await self.live.conversation(request, name)
        key, reader = self.live.key(request, name), self.live.reader(request)
        summary = await self.summaries.newest(reader.caller, name) if reader.reads(key) and reader.caller else {}
        content = {**await self.live.conversation_json(request, name), **summary}
        if not content:
            raise nothing()
        return json_page(content)

    async def _delete(self, request: web.BaseRequest, name: str) -> web.Response:
        caller = self.parts.caller(request)
        key = Key(caller.tenant, name)
        owner = None if caller.sees_all else caller.owner
        if not await self.parts.ask("delete", self.deletion.conversation(key, owner)) and owner is not None:
            raise nothing()
        return web.Response(status=204, headers=PRIVATE)

    async def _delete_all(self, request: web.BaseRequest) -> web.Response:
        caller = self.parts.caller(request)
        owner = None if caller.sees_all else caller.owner
        count = await self.parts.ask("delete_tenant", self.deletion.everything(caller.tenant, owner))
        return json_page({"deleted": count})
