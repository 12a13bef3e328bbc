"""One ping: whether it may be sent, and what came of it.

Laws
  It goes to the same upstream with the same credential as the request that it stands for, and its reply is read for the
  usage alone.
  It is sent only where nothing speaks against it, looked at in the order of what that costs: in memory, in the store,
  then in the counts of the key. Where the store is away nobody knows, and none is sent.
  All replicas send one at a time for a conversation, and none for one that has gone on elsewhere, or whose client has
  begun another one elsewhere.
  What it costs where the prompt has to be written is taken from the budget before it is sent, and what is left of that
  given back. The first ping that shows that a prompt was not in the cache, or is answered, ends those for its model at
  its upstream until Narrows starts again; one that is refused, those of its client. An answer is cut off as it begins.
  What it came to is billed, and charged to the key.
"""

import asyncio
import time
from collections.abc import Callable, MutableMapping
from contextlib import aclosing, closing, nullcontext, suppress
from typing import Any

from cachetools import LRUCache

from policies.dialects import DIALECTS
from policies.dialects.dialect import Dialect, begins_output, usage_in
from policies.dialects.pings import NoPingError
from policies.money.prices import Usage
from proxy.addons.warm.waiting import WaitingPrompt, begun
from proxy.errors import ApiError
from proxy.identity.credential import seconds_of
from proxy.kernel.send import headers_of
from proxy.kernel.services import Services
from proxy.memory import UNTOUCHED, Purse, Store, StoreTrouble
from proxy.sse import Events
from proxy.upstreams.upstream import CutError, UpstreamReply

_LONGEST = 45.0
"""Seconds for all of a ping; its lease is longer, so that it is not lost meanwhile."""
_LEASE, _LEASE_SECONDS = "warm", 60.0
_LARGEST_REPLY = 2**20
_MOST_OUTPUT = 16
"""Tokens: an upstream that answers with more does not know the form of a ping."""
_LARGE_BYTES = 200_000
"""A larger body is changed in a thread, so that nobody else waits."""
_REFUSALS = (400, 404, 413, 422)
"""Statuses by which an upstream does not take such a request, whoever sends it."""


_ENDED = 1_024
Ended = tuple[str, str, str]
"""Of whom no ping to a model at an upstream is sent any more: of an owner, or "" for all."""


class Pings:
    def __init__(self, services: Services, store: Store, ended: "MutableMapping[Ended, bool] | None" = None) -> None:
        """`ended`: what a Narrows before a reload has learned."""
        self._services, self._store = services, store
        self.ended: MutableMapping[Ended, bool] = LRUCache(_ENDED) if ended is None else ended
        self.still_waits: Callable[[WaitingPrompt], bool] = lambda prompt: True
        """Whether nobody has gone on with its conversation, or deleted it, since the ping was begun."""

    def objection(self, prompt: WaitingPrompt) -> str:
        """The reason, by what is known here, why none may be sent; "" where there is none."""
        states, (owner, upstream) = self._services.admission.states, prompt.owner
        access = self._services.opened.get("access")
        if any((whose, prompt.model, upstream) in self.ended for whose in ("", owner)):
            return "ended"
        if prompt.row is not None and (access is None or not access.counts(prompt.row)):
            return "key"
        return "" if states.is_accepted(owner, upstream) and not states.is_blocked(owner) else "upstream"

    async def send(self, prompt: WaitingPrompt) -> str:
        """The outcome: read, written, answered, refused, failed, or skipped with a reason."""
        try:
            async with asyncio.timeout(_LONGEST):
                return await self._send(prompt)
        except NoPingError as reason:
            return f"skipped:{reason}"
        except StoreTrouble:
            return "skipped:store"
        except (ApiError, CutError, TimeoutError):
            return "failed"
        except Exception as error:  # nobody waits for it
            self._services.telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
            return "failed"

    async def _send(self, prompt: WaitingPrompt) -> str:
        body, store, key = await self._body(prompt), self._store, prompt.key
        lease = await store.lease(key, _LEASE, _LEASE_SECONDS)
        if lease is None:
            raise NoPingError("lease")
        try:
            untouched = (await store.memory(key, [UNTOUCHED])).steps.get(UNTOUCHED)
            newest = filter(None, (untouched, await store.newest_step(key)))
            if any(step.at > prompt.record.at for step in newest):
                raise NoPingError("moved")
            last = await store.newest_step(prompt.beginning)
            if last is not None and last.at > prompt.record.at and last.sent != begun(key, 0.0).sent:
                raise NoPingError("begun")
            return await self._within_budget(prompt, body)
        finally:
            with suppress(StoreTrouble):  # it ends by itself
                await store.release(key, lease)

    async def _body(self, prompt: WaitingPrompt) -> bytes:
        """The body of the ping. Raises NoPingError."""
        form = DIALECTS[prompt.labels.api].ping
        ping = form(prompt.body) if len(prompt.body) <= _LARGE_BYTES else await asyncio.to_thread(form, prompt.body)
        self._check(prompt)
        return ping

    def _check(self, prompt: WaitingPrompt) -> None:
        """Raises NoPingError where it may not be sent any more."""
        late = "" if self._services.clock() < prompt.end else "late"
        if reason := self.objection(prompt) or late or ("" if self.still_waits(prompt) else "moved"):
            raise NoPingError(reason)

    async def _within_budget(self, prompt: WaitingPrompt, body: bytes) -> str:
        services, budget = self._services, self._services.settings.keep_warm_budget
        prices = services.price_book.prices(prompt.model, prompt.upstream)
        tokens, dollars = prompt.tokens, 0.0
        most = prices.cost(Usage(tokens, 0, tokens, _MOST_OUTPUT, tokens)).total
        purse = Purse(prompt.labels.tenant, day=f"{time.strftime('%Y-%m-%d', time.gmtime(services.clock()))} pings")
        if not await self._store.take(purse, most, budget):
            raise NoPingError("budget")
        try:
            admitted = await self._admit(prompt)
            with closing(admitted) if admitted is not None else nullcontext():
                self._check(prompt)  # the store may have taken its time
                dollars = most  # where nobody says what it has cost
                status, usage, is_answer = await self._ask(prompt, body)
                billed = usage or Usage(tokens, tokens, 0, _MOST_OUTPUT if is_answer else 0)
                dollars = prices.cost(billed).total if status < 300 else 0.0
                if admitted is not None:
                    admitted.charge(billed.prompt + billed.completion if dollars else 0, dollars)
        finally:
            with suppress(StoreTrouble):  # then it counts as written
                await self._store.take(purse, dollars - most)
        if status < 300:
            for bill in services.pinged:
                bill(prompt.key, prompt.labels, billed, prices, usage is None)
        return self._outcome(prompt, status, usage, is_answer)

    async def _admit(self, prompt: WaitingPrompt) -> Any:
        """Count it as a request of its key; None where nothing limits that. Raises NoPingError."""
        limits = self._services.opened.get("limits")
        try:
            return await limits.admit_ping(prompt.row, prompt.labels) if limits is not None else None
        except ApiError as error:
            raise NoPingError("limits") from error

    async def _ask(self, prompt: WaitingPrompt, body: bytes) -> tuple[int, Usage | None, bool]:
        """Status and usage of the reply, and whether it is an answer. Raises ApiError."""
        services, (owner, upstream) = self._services, prompt.owner
        headers = headers_of(prompt.head, prompt.more, f"-warm-{prompt.pings + 1}")
        headers["Accept-Encoding"] = "identity"
        sending = services.upstreams.by_name[upstream].send("POST", prompt.rest, headers, body, prompt.model)
        with closing(await sending) as reply:
            retry_after = seconds_of(reply.headers.get("Retry-After"))
            services.admission.states.note(owner, reply.status, retry_after, upstream)
            return reply.status, *await _read(reply, DIALECTS[prompt.labels.api])

    def _outcome(self, prompt: WaitingPrompt, status: int, usage: Usage | None, is_answer: bool) -> str:
        is_written = usage is not None and 2 * usage.cached < usage.prompt
        if status in _REFUSALS or (status < 300 and (is_written or is_answer)):
            whose = "" if status < 300 else prompt.labels.owner  # what one sends may be refused for its own sake
            self.ended[whose, prompt.model, prompt.upstream] = True
            log, cached = self._services.telemetry.log, usage.cached if usage is not None else None
            log.warning(
                "keep_warm_ended", model=prompt.labels.model, upstream=prompt.upstream, status=status, cached=cached
            )
        if status >= 300 or (usage is None and not is_answer):
            return "refused" if 300 <= status < 500 else "failed"
        return "answered" if is_answer else "written" if is_written else "read"


async def _read(reply: UpstreamReply, api: Dialect) -> tuple[Usage | None, bool]:
    """The usage of a reply, and whether it is an answer; of one that is streamed nothing more is read then."""
    events, read = Events(), bytearray()
    async with aclosing(reply.ahead()) as pieces:
        async for piece in pieces:
            read += piece
            if any(map(begins_output, events.feed(piece))):
                return None, True
            if len(read) >= _LARGEST_REPLY:
                break
    usage = usage_in(api, bytes(read))
    return usage, usage is not None and usage.completion > _MOST_OUTPUT
