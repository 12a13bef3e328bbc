"""The pages of conversations: which of them a request names, and deletion.

Laws
  A caller proves who it is, as the guards in `proxy.identity.who` say.
  What is missing, empty or owned by somebody else is answered in the same words.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from proxy.addons.pages.answers import PRIVATE, PageParts, json_page, nothing
from proxy.addons.pages.artifacts import ArtifactPages
from proxy.addons.pages.live import LivePages, wants_page
from proxy.addons.pages.summaries import SummaryPages
from proxy.addons.pages.targets import CONVERSATIONS, READ, allow_only, no_page, parse_target
from proxy.errors import ApiError
from proxy.kernel.deletion import Deletion
from proxy.memory import Key
from proxy.memory.forgetting import Scope, sent_with

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
    log_pages: Mapping[str, Page]
    """By what stands behind the name of the conversation."""

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The page that the target of the request names. Raises ApiError."""
        is_read = request.method in READ
        if is_read and request.path == CONVERSATIONS and "id" not in request.query:
            return await self.live.listed(request)
        more = ("tenant", "branch", "round") if is_read else ("tenant", "key") if request.method == "DELETE" else ()
        name, page = parse_target(request.raw_path, more)
        if name is None:
            allow_only(request, (*READ, "DELETE"))
            return await self._delete_all(request)
        pages: Mapping[str, Mapping[str, Page]] = {
            "": {**dict.fromkeys(READ, self._one), "DELETE": self._delete},
            "artifacts": dict.fromkeys(READ, self.artifacts.listed),
            "summaries": dict.fromkeys(READ, self.summaries.listed),
            "summary": {"POST": self.summaries.summarize},
            **{each: dict.fromkeys(READ, page) for each, page in self.log_pages.items()},
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
        summary = await self.summaries.newest(key, reader.texts) if reader.reads(key) and reader.texts else {}
        content = {**await self.live.conversation_json(request, name), **summary}
        if not content:
            raise nothing()
        return json_page(content)

    async def _delete(self, request: web.BaseRequest, name: str) -> web.Response:
        scopes = await self._scopes(request)
        deleted = [
            await self.parts.ask("delete", self.deletion.conversation(Key(each.tenant, name), each.owner))
            for each in scopes
        ]
        if not any(deleted) and not any(each.owner is None for each in scopes):
            raise nothing()
        return web.Response(status=204, headers=PRIVATE)

    async def _delete_all(self, request: web.BaseRequest) -> web.Response:
        count = 0
        for scope in await self._scopes(request):
            count += await self.parts.ask("delete_tenant", self.deletion.everything(scope.tenant, scope.owner))
        return json_page({"deleted": count})

    async def _scopes(self, request: web.BaseRequest) -> Sequence[Scope]:
        """In which tenants whoever asks deletes, and of which owners. Raises ApiError."""
        named = {name: request.query.getall(name) for name in ("tenant", "key") if name in request.query}
        if any(len(values) > 1 or not values[0] for values in named.values()) or len(named) > 1:
            raise ApiError(400, "Give `tenant` or `key`, once, with its name.", "bad_parameter")
        tenant, key = ("".join(named.get(name, ())) for name in ("tenant", "key"))
        parts = self.parts
        identity = parts.who(request)
        if named and identity.may("delete anywhere", parts.settings):
            if tenant:
                return [Scope(tenant)]
            return await parts.ask("day_rows", sent_with(parts.store, key, parts.secret))
        grant, mine = parts.permit(request, "conversations"), identity.key
        if (tenant or identity.tenant) != identity.tenant or (key and (mine is None or mine.name != key)):
            raise nothing()
        is_homeless = not parts.settings.tenant and "admin" in identity.tokens
        if is_homeless and not named:  # the token is no tenant's
            raise ApiError(400, "Say whose conversations: `?tenant=NAME` or `?key=NAME`.", "bad_parameter", "tenant")
        return [Scope(identity.tenant, None, grant.owner)]
