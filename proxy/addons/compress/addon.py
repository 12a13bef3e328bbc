"""The compress API: it shortens messages that somebody else sends, and returns hidden texts by their hashes.

Laws
  Nothing goes upstream. Whoever asks has a key of this gateway, or is this machine, or has a credential that an
  upstream has accepted: nobody else can fill the store.
  A text is stored before the answer that hides it leaves; where it cannot be stored, nothing is hidden.
  Only who sent a text gets it; what is missing, expired or of others is refused alike.
  Where Narrows fails, the caller gets its own messages back, and the answer says so.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from time import monotonic

from aiohttp import web

from policies.assemble import PlanOptions
from policies.dialects.splitting import TooManyError
from policies.keep import joined
from policies.money.catalog import prices_for
from policies.money.prices import BudgetLimits
from policies.shorten import Shortened, shorten
from proxy.config import Settings
from proxy.config.routes import COMPRESS, RETRIEVE
from proxy.errors import ApiError
from proxy.event_loop import in_thread
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.receive import MODES, read_head
from proxy.kernel.services import Services
from proxy.kernel.wire.downstream import SERVER, Upload
from proxy.memory import COMPRESSED, Key, StoredText, StoreTrouble, conversation_id, ttl_of
from proxy.memory.opening import StoreAccess
from proxy.requests import RequestHead, RequestOptions

_AT_ONCE = 2
"""Requests that are shortened at the same time: each takes a thread."""
_HASH = re.compile(r"[0-9]{24}")
_UNNAMED = "compress"
"""The conversation of what comes with no name of one."""
_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store", **SERVER}


class CompressApi(Addon):
    def __init__(self, settings: Settings, services: StoreAccess) -> None:
        self._settings = settings
        self._services = services
        lifetime = ttl_of(settings.store)
        self._period = max(1, lifetime // 2)
        self._ttl = lifetime - self._period
        self._presets = settings.all_presets()
        self._limits = BudgetLimits(**{limit.name: getattr(settings, limit.name) for limit in fields(BudgetLimits)})
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def admit(self, exchange: Exchange) -> None:
        if exchange.path == COMPRESS or exchange.path.startswith(RETRIEVE):
            exchange.kind, exchange.answer = "compress", partial(self._answer, exchange)

    async def _answer(self, exchange: Exchange) -> web.Response:
        """The answer to a request of either path. Raises ApiError."""
        request, settings = exchange.request, self._settings
        head, upload = read_head(request, settings, self._services.secret), Upload(request, settings.body_timeout)
        exchange.tenant = head.access.tenant
        is_accepted = head.access.key is not None or exchange.visit.admission.states.is_accepted(head.access.owner)
        if not is_accepted and not head.access.is_here:
            message = (
                "The compress API needs a key of this gateway, a credential that an upstream has accepted, or a "
                "request from this machine by address."
            )
            raise ApiError(403, message, "forbidden")
        path = request.path.rstrip("/")
        allowed = "POST" if path == COMPRESS else "GET"
        if request.method != allowed:
            raise ApiError(405, f"{path} takes {allowed}.", "method_not_allowed", headers={"Allow": allowed})
        if path != COMPRESS:
            response = await self._retrieve(head, path.removeprefix(RETRIEVE))
        else:
            try:
                _, body = await upload.whole(settings.body_limit)
            finally:
                exchange.received = upload.size
            may_plan = exchange.visit.begin_planning(is_accepted)
            try:
                response = await self._compress(head, body, may_plan)
            finally:
                exchange.visit.end_planning()
        exchange.status = response.status
        return response

    async def _compress(self, head: RequestHead, body: bytes, may_plan: bool) -> web.Response:
        """The messages, shortened, with their figures. Raises ApiError where the body cannot be shortened."""
        mode = max(head.wishes.mode, self._settings.mode, key=MODES.index)
        try:
            async with self._places:
                deadline = monotonic() + (self._settings.planning_timeout if may_plan else 0.0)
                options = partial(self._options, head.wishes, policies=mode == "on")
                short = await in_thread(shorten, body, options, lambda: monotonic() > deadline)
        except TooManyError as error:
            message = f"The body has more than {error.limit} {error.what}, which is too much to shorten."
            raise ApiError(400, message, "bad_body", "messages") from error
        except ValueError as error:
            raise ApiError(400, f"The body cannot be shortened: {error}.", "bad_body", "messages") from error
        warning = "busy" if short.shed else ""
        if short.hidden and not warning:
            warning = await self._keep(head, short.hidden)
        if warning:
            short = replace(short, messages=short.as_it_came, tokens_after=short.tokens_before, hidden={}, policies=())
        return web.Response(body=self._page(short, warning), headers=_HEADERS)

    def _options(self, asks: RequestOptions, model: str, policies: bool) -> PlanOptions:
        settings = self._settings
        preset = self._presets[asks.preset or settings.preset]
        return PlanOptions(
            preset=preset if policies else replace(preset, policies=()),
            prices=prices_for(model, settings.models),
            aim=asks.aim or settings.aim,
            limits=replace(self._limits, context_tokens=asks.context_tokens or settings.context_tokens),
            tool_kinds=settings.tool_kinds,
            keep=joined(settings.keep, asks.keep),
        )

    def _page(self, short: Shortened, warning: str) -> bytes:
        """The answer: the fields that callers of such an API read, and `hashes`, which is Narrows' own name for one."""
        before, after = short.tokens_before, short.tokens_after
        hashes = list(short.hidden)
        figures = {
            "tokens_before": before,
            "tokens_after": after,
            "tokens_saved": before - after,
            "compression_ratio": round(after / before, 4) if before else 1.0,
            "transforms_applied": list(short.policies),
            "hashes": hashes,
            "ccr_hashes": hashes,
            "ttl": self._ttl,
            **({"warning": warning} if warning else {}),
        }
        return b'{"messages":' + short.messages + b"," + json.dumps(figures).encode().removeprefix(b"{")

    async def _keep(self, head: RequestHead, hidden: Mapping[str, str]) -> str:
        """Store the hidden texts; "" where they are stored, else the reason why not."""
        limit = self._settings.artifacts_limit
        if sum(len(text) for text in hidden.values()) > limit // 4:  # else some of it could go before it is asked for
            return "too-large"
        key = Key(head.access.tenant, conversation_id(head.conversation or _UNNAMED))
        names = self._names(head.access.owner)
        about: dict[str, str | int | float] = {"owner": head.access.owner, "at": self._services.clock()}
        texts = [StoredText(names[0] + name, text, about) for name, text in hidden.items()]
        try:
            await self._services.store.own(key, head.access.owner)
            await self._services.store.put_texts(key, COMPRESSED, texts, limit)
        except StoreTrouble:
            self._services.telemetry.metrics.store_trouble("compressed")
            return "store"
        return ""

    async def _retrieve(self, head: RequestHead, name: str) -> web.Response:
        """A text by its hash. Raises ApiError."""
        store, text = self._services.store, None
        try:
            for prefix in self._names(head.access.owner) if _HASH.fullmatch(name) else ():
                for conversation in await store.conversations_with(head.access.tenant, COMPRESSED, prefix + name):
                    texts = await store.texts(Key(head.access.tenant, conversation), COMPRESSED, [prefix + name])
                    text = texts.get(prefix + name, text)
        except StoreTrouble as error:
            self._services.telemetry.metrics.store_trouble("compressed")
            message = "The store does not answer, so nothing can be looked up; try again in a moment."
            raise ApiError(503, message, "store_trouble", headers={"Retry-After": "5"}) from error
        if text is None:
            raise ApiError(404, "No text is stored for this hash: it is unknown, or it has expired.", "not_found")
        page = json.dumps({"hash": name, "original_content": text})
        return web.Response(body=page.encode(), headers=_HEADERS)

    def _names(self, owner: str) -> list[str]:
        """The prefixes of the names under which an owner's texts are stored: the one of now first, then those of texts
        that may be there still. A text is stored anew in each half of its lifetime, so after each answer it stays for
        the other half at least."""
        now = int(self._services.clock() // self._period)
        return [f"{owner}.{now - before}." for before in range(3)]


async def start(services: Services) -> CompressApi | None:
    if services.compaction is None or not services.settings.compress_api:
        return None
    return CompressApi(services.settings, services.compaction.access)
