"""Keeping warm: while a conversation waits for a person, or for a tool, its newest prompt is sent again shortly before
the provider's cache expires, so that it need not be written anew when its client returns.

Laws
  It is off unless `keep_warm` says how long: it spends a client's money while nobody is there.
  A ping keeps alive what its client has just used: the newest prompt of a conversation, after a reply that succeeded,
  of a credential that its upstream accepts.
  The next request of the conversation ends it; so does a new conversation of the same client that begins with the same
  instructions and tools, an error of the upstream for this credential, a deletion, and the end of the key.
  Key and body are in memory only, and only while a ping is due: one prompt of each conversation, bounded in number and
  bytes together; the oldest go.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from cachetools import FIFOCache

from proxy.addons.warm.pings import Pings
from proxy.addons.warm.waiting import WaitingPrompt, beginning_of, begun
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.services import Services
from proxy.memory import Key
from proxy.memory.cached import StoreWriter
from proxy.requests import ReplyRound

_MOST, _MOST_BYTES = 1_000, 64 * 2**20
_LARGEST_BODY = 8 * 2**20
_AT_ONCE = 8
_LOOK = 1.0
"""Seconds, by the clock of caches, between two looks at what is due, and at what may wait no longer."""


class KeepWarm(Addon):
    """Where the clock is simulated, whoever has it calls `run_due` at the time that `next_due` names."""

    def __init__(self, services: Services, pings: Pings, writer: StoreWriter) -> None:
        self._services, self.pings, self._writer = services, pings, writer
        self.waiting: FIFOCache[Key, WaitingPrompt] = FIFOCache(_MOST_BYTES, _weight)
        self._sending: dict[Key, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._running: dict[str, Key] = {}
        """The conversations of requests that are on their way, by the id of the exchange, but those deleted since."""
        pings.still_waits = lambda prompt: self.waiting.get(prompt.key) is prompt
        self._is_leaving = False
        services.forgets.register(self._forget)
        services.leaving.append(self.leave)

    async def planned(self, exchange: Exchange) -> None:
        request = exchange.upstream_request
        if request is None or request.client_request.counting is not None:
            return
        planned, owner, upstream = request.planned, request.client_request.sender.owner, request.client_request.upstream
        if planned is None:  # nobody knows which conversation goes on
            self._drop("unread", lambda each: each.owner == (owner, upstream))
            return
        context = planned.context
        self.waiting.pop(context.key, None)
        self._running[exchange.id] = context.key
        if planned.previous is None:
            beginning = beginning_of(context.key.tenant, owner, context.head)
            self._writer.note(beginning, begun(context.key, self._services.clock()))
            self._drop("begun", lambda each: each.beginning == beginning)

    async def finished(self, exchange: Exchange) -> None:
        last, is_there = exchange.rounds[-1] if exchange.rounds else None, self._running.pop(exchange.id, None)
        if last is None or self._is_leaving:
            return
        sender, upstream = last.request.client_request.sender, last.request.client_request.upstream
        if not 200 <= last.status < 300:
            if exchange.trouble != "client_left":
                self._drop("upstream", lambda each: each.owner == (sender.owner, upstream))
            return
        prompt = _waiting_prompt(exchange, last, self._services.settings.keep_warm)
        if prompt is None or is_there is None:
            return
        is_any = self._services.settings.keep_warm_credential == "client-any"
        if reason := _objection(last, is_any) or self.pings.objection(prompt):
            self._count(f"skipped:{reason}")
        else:
            self.waiting.pop(prompt.key, None)
            others = len(self.waiting)
            self.waiting[prompt.key] = prompt
            self._count("skipped:crowded", others + 1 - len(self.waiting))

    def next_due(self) -> float | None:
        """When the next ping is due; None where none is."""
        return min((each.due for each in self.waiting.values() if each.key not in self._sending), default=None)

    async def run_due(self, now: float) -> None:
        """Send the pings that are due by now, and wait for what comes of them."""
        await asyncio.gather(*self.begin_due(now), return_exceptions=True)

    def begin_due(self, now: float) -> "Sequence[asyncio.Task[None]]":
        """Forget what may wait no longer, and begin to send the pings that are due by now."""
        begun = []
        self._drop("clock", lambda each: each.sent > now)  # it was set back, and says nothing of the cache
        for prompt in [*self.waiting.values()]:
            if reason := self.pings.objection(prompt):
                del self.waiting[prompt.key]
                self._count(f"skipped:{reason}")
            elif prompt.due <= now and prompt.key not in self._sending:
                task = self._sending[prompt.key] = asyncio.create_task(self._send(prompt))
                task.add_done_callback(partial(self._sending.pop, prompt.key))
                begun.append(task)
        return begun

    def leave(self) -> None:
        """Others serve what follows: nothing waits here any more."""
        self._is_leaving = True
        self.waiting.clear()
        for task in self._sending.values():
            task.cancel()

    async def close(self) -> None:
        self.leave()
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def _send(self, prompt: WaitingPrompt) -> None:
        async with self._places:
            if self.waiting.get(prompt.key) is not prompt:  # its client has returned
                return
            now = self._services.clock()
            outcome = await self.pings.send(prompt)
        self._count(outcome)
        following = prompt.again(now)
        if outcome in ("refused", "failed"):
            self._drop("upstream", lambda each: each is not prompt and each.owner == prompt.owner)
        if self.waiting.get(prompt.key) is prompt:
            del self.waiting[prompt.key]
            if outcome == "read" and following.is_wanted:
                self.waiting[prompt.key] = following
        if outcome == "read":
            self._writer.warmed(prompt.key, prompt.fingerprint, prompt.record, now, is_quiet=prompt.is_quiet)

    def _forget(self, tenant: str, conversation: str | None) -> None:
        def belongs(key: Key) -> bool:
            return key.tenant == tenant and conversation in (None, key.conversation)

        for key in filter(belongs, [*self.waiting]):
            del self.waiting[key]
        self._running = {name: key for name, key in self._running.items() if not belongs(key)}
        for key, task in self._sending.items():
            if belongs(key):
                task.cancel()

    def _drop(self, reason: str, which: Callable[[WaitingPrompt], bool]) -> None:
        dropped = [key for key, prompt in self.waiting.items() if which(prompt)]
        for key in dropped:
            del self.waiting[key]
        self._count(f"skipped:{reason}", len(dropped))

    def _count(self, outcome: str, by: int = 1) -> None:
        if by:
            self._services.telemetry.metrics.count("pings", outcome, by=by)


def _weight(prompt: WaitingPrompt) -> int:
    """One that bounds both: a small prompt weighs as much as each of the most that there may be."""
    return max(len(prompt.body), _MOST_BYTES // _MOST)


def _waiting_prompt(exchange: Exchange, last: ReplyRound, keep_warm: float) -> WaitingPrompt | None:
    """The prompt of a request that succeeded, where it is waited for longer than its cache lives; else None."""
    request, usage, bill, head = last.request, last.usage, exchange.bill, exchange.head
    client_request, planned, record = request.client_request, request.planned, request.notes.record
    if planned is None or record is None or usage is None or bill is None or head is None:
        return None
    if client_request.is_dry or not exchange.is_whole or exchange.trouble:
        return None
    context = planned.context
    prompt = WaitingPrompt(
        key=context.key,
        labels=bill.labels,
        row=client_request.sender.key,
        upstream=client_request.upstream,
        model=client_request.model or context.request.model,
        rest=exchange.rest,
        head=head,
        more=request.upstream_headers,
        body=request.body,
        beginning=beginning_of(context.key.tenant, bill.labels.owner, context.head),
        tokens=usage.prompt,
        lifetime=planned.lifetime,
        record=record,
        fingerprint=context.fingerprint,
        is_quiet=planned.is_quiet,
        sent=record.at,
        until=record.at + keep_warm,
    )
    return prompt if prompt.is_wanted else None


def _objection(last: ReplyRound, is_any: bool) -> str:
    """The reason, by the request itself, why it is not kept warm."""
    request, usage = last.request, last.usage
    if not (is_any or request.client_request.proof.is_plain_key):
        return "credential"
    if len(request.body) > _LARGEST_BODY:
        return "large"
    return "uncached" if usage is None or 2 * (usage.cached + usage.written) < usage.prompt else ""


async def _follow(warm: KeepWarm, services: Services, speed: float) -> None:
    """Send what is due whenever it is time."""
    while True:
        await asyncio.sleep(_LOOK / speed)
        try:
            warm.begin_due(services.clock())
        except Exception as error:  # else nothing would be sent or forgotten any more
            services.telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)


async def start(services: Services) -> KeepWarm | None:
    if services.store is None or services.compaction is None or not services.settings.keep_warm:
        return None
    before = services.before.get("warm")
    pings = Pings(services, services.store, before.pings.ended if before is not None else None)
    warm = KeepWarm(services, pings, StoreWriter(services.compaction.cached_store))
    services.parts.push_async_callback(warm.close)
    speed = 1.0 if services.clock is time.time else getattr(services.clock, "speed", 0.0)
    if speed:
        services.parts.callback(asyncio.create_task(_follow(warm, services, speed)).cancel)
    return warm
