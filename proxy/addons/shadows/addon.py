"""Does the model still do the same? Sampled from requests as they are served (`agree_share`).

For a sampled request two more are made that nobody sees, so that there are three replies: one to what Narrows makes of
it, and two to what the client wrote, by which the model's own noise shows. One of the three is the client's own.

Laws
  A shadow goes upstream with the configured key, and of the client's headers and query only with what says how its body
  is to be read. It is made when the client's reply has ended, and no request waits for it or fails by it.
  What it may cost is taken from the budget of the day first, in the store that all share, and what it did not cost is
  given back. Without the store nothing is asked.
  Few run at once; where these are taken, where the event loop is late, or after failures in a row, samples are dropped.
  Nothing of them is stored but counts, and an event that holds no text. Those of a conversation that is deleted end.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from multidict import CIMultiDict

from policies.agreement import Action, action_in
from policies.dialects import DIALECTS
from policies.dialects.dialect import usage_in
from policies.money.prices import RESERVE, Usage
from policies.tools import OURS
from proxy.breaker import reported_breaker
from proxy.config.routes import BETAS, VERSIONS, drop_sign_ins, words_in
from proxy.errors import ApiError
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.prepare import rendered_body
from proxy.kernel.services import Services
from proxy.memory import Key, Purse, Store, StoreTrouble
from proxy.memory.audit_log import AuditLog
from proxy.requests import PlannedRequest
from proxy.upstreams.upstream import CutError

_AT_ONCE = 4
"""Samples of a process that are being made, from the client's request to the last shadow."""
_LARGEST = 8 * 2**20
"""Bytes of a reply; a larger one is not compared."""
_LONGEST = 600.0
"""Seconds for all shadows of a sample."""
_PASSED_ON = ("content-type", *VERSIONS, *BETAS)
_PASSED_ON_PARAMETERS = ("api-version", "beta")
"""Of the query; others may be a credential (`key`, `api-key`)."""
_UNCERTAIN = 1.2
"""How many tokens may be billed for each one estimated."""


class _DroppedError(Exception):
    """A sample that comes to nothing, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A sampled request, until its shadows are answered."""

    planned: PlannedRequest
    is_edited: bool
    """True where the client's own reply is to what Narrows made of its request."""
    rest: str
    headers: CIMultiDict[str]


class Shadows(Addon):
    def __init__(
        self, services: Services, store: Store, audit_log: AuditLog, random: Callable[[], float] = random.random
    ) -> None:
        settings = services.settings
        self._services, self._store, self._audit_log, self._random = services, store, audit_log, random
        self._share = settings.agree_share
        names = {"default": settings.agree_key_env, "anthropic": settings.agree_anthropic_key_env}
        self._keys = {row.name: "" for row in settings.upstream_rows if row.has_key}
        self._keys |= {upstream: os.environ[name] for upstream, name in names.items() if name}
        """By the upstreams that are asked; "" where its row has the key."""
        self._breaker = reported_breaker("shadows", services.telemetry)
        self._samples: dict[Exchange, Sample] = {}
        self._tasks: dict[asyncio.Task[None], Key] = {}
        services.forgets.register(self._forget)

    async def planned(self, exchange: Exchange) -> None:
        outgoing = exchange.upstream_request
        planned = outgoing.planned if outgoing is not None else None
        if outgoing is None or planned is None or not planned.plan.edits or self._random() >= self._share:
            return
        client_request, request = outgoing.client_request, planned.context.request
        if outgoing.notes.left_out or not client_request.is_accepted or client_request.upstream not in self._keys:
            return
        store = request.body[slice(*request.members["store"])] if "store" in request.members else b""
        is_stored = store != b"false" if planned.context.dialect.stores else store == b"true"
        if is_stored or exchange.head is None:  # the reply would stand twice in somebody's account
            return
        if self.running >= _AT_ONCE or self._services.admission.pressure.is_late or self._breaker.is_paused:
            self._count("dropped")
            return
        own, (path, _, query) = exchange.head.forwarded, exchange.rest.partition("?")
        fields = [field for field in query.split("&") if field.partition("=")[0] in _PASSED_ON_PARAMETERS]
        self._samples[exchange] = Sample(
            planned=planned,
            is_edited=outgoing.body is not client_request.body,
            rest=f"{path}?{'&'.join(fields)}" if fields else path,
            headers=CIMultiDict((name, own[name]) for name in _PASSED_ON if name in own),
        )
        exchange.hold_reply(_LARGEST)

    async def finished(self, exchange: Exchange) -> None:
        """The client's reply has ended: make its shadows in the background, where it can be compared."""
        sample = self._samples.pop(exchange, None)
        if sample is None:  # as a rule; or the conversation was deleted meanwhile
            return
        reply, context = exchange.reply, sample.planned.context
        status = exchange.rounds[-1].status if exchange.rounds else 0
        own = None
        if status == 200 and reply is not None and 0 < reply.size <= _LARGEST:
            own = action_in(context.client_request.dialect, reply.content)
        if own is None:
            self._count("unread")
            return
        task = asyncio.create_task(self._compare(sample, own))
        self._tasks[task] = context.key
        task.add_done_callback(self._tasks.pop)

    @property
    def running(self) -> int:
        return len(self._samples) + len(self._tasks)

    async def close(self) -> None:
        self._samples.clear()
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, tenant: str, conversation: str | None) -> None:
        def belongs(key: Key) -> bool:
            return key.tenant == tenant and conversation in (None, key.conversation)

        self._samples = {on: each for on, each in self._samples.items() if not belongs(each.planned.context.key)}
        for task in [task for task, key in self._tasks.items() if belongs(key)]:
            task.cancel()

    async def _compare(self, sample: Sample, own: Action) -> None:
        outcome = "compared"
        try:
            async with asyncio.timeout(_LONGEST):
                first = await self._ask(sample, edited=not sample.is_edited)
                second = await self._ask(sample, edited=False)
            edited, without = (own, (first, second)) if sample.is_edited else (first, (own, second))
            if any(call.tool in OURS for call in edited.calls):  # nobody answers one here
                raise _DroppedError("recalled")
            self._note(sample, edited, without)
        except _DroppedError as error:
            outcome = str(error)
        except StoreTrouble:
            outcome = "store"
        except (ApiError, CutError, TimeoutError) as error:
            outcome = "failed"
            self._breaker.failed(getattr(error, "code", type(error).__name__))
        except Exception as error:  # a shadow is nobody's trouble
            outcome = "failed"
            self._services.telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
        self._count(outcome)

    def _note(self, sample: Sample, edited: Action, without: tuple[Action, Action]) -> None:
        """Count what came of it: of Narrows both comparisons, of the model with itself the one that there is."""
        noise = without[0].does_same(without[1])
        same = [edited.does_same(each) for each in without]
        for compared, outcomes in (("narrows", same), ("itself", [noise])):
            for outcome in outcomes:
                self._services.telemetry.metrics.count("agreements", compared, "same" if outcome else "different")
        details = {
            "same": sum(same),
            "noise": "same" if noise else "different",
            "edits": len(sample.planned.plan.edits),
        }
        self._audit_log.note(sample.planned.context.key, "agreement", **details)

    async def _ask(self, sample: Sample, edited: bool) -> Action:
        """The model's action on the client's request, or on what Narrows makes of it."""
        services, context = self._services, sample.planned.context
        dialect, model = context.client_request.dialect, context.request.model
        body = rendered_body(sample.planned) if edited else context.client_request.body
        prices = services.price_book.prices(model, context.client_request.upstream)
        tokens = sample.planned.tokens_sent if edited else sample.planned.tokens_received
        prompt, answer = int(context.calibration.estimate(tokens) * _UNCERTAIN), context.request.reserve or RESERVE
        most = prices.cost(Usage(prompt, 0, prompt, answer)).total
        purse = Purse(day=f"{time.strftime('%Y-%m-%d', time.gmtime())} shadows")
        if not await self._store.take(purse, most, services.settings.agree_budget):
            raise _DroppedError("budget")
        dollars = most  # where nobody says what it has cost
        try:
            status, content = await self._send(sample, dialect, body, context.consent.headers if edited else {})
            usage = usage_in(DIALECTS[dialect], content) if status == 200 else None
            dollars = prices.cost(usage).total if usage else most if status == 200 else 0.0
        finally:
            services.telemetry.metrics.count("shadow_cost_usd", by=dollars)
            await self._store.take(purse, dollars - most)
        if status != 200:
            self._breaker.failed(str(status))
            raise _DroppedError("failed")
        self._breaker.succeeded()
        action = action_in(dialect, content)
        if action is None:
            raise _DroppedError("unread")
        return action

    async def _send(self, sample: Sample, dialect: str, body: bytes, more: Mapping[str, str]) -> tuple[int, bytes]:
        """The reply to a shadow. Raises ApiError, CutError."""
        headers = sample.headers.copy()
        drop_sign_ins(headers)
        for name, value in more.items():
            words = words_in(headers.popall(name, ()))
            headers[name] = ",".join(words if value in words else [*words, value])
        headers["Accept-Encoding"] = "identity"
        context = sample.planned.context
        upstream = self._services.upstreams.by_name[context.client_request.upstream]
        if key := self._keys[upstream.name]:
            name, before = DIALECTS[dialect].http.key
            headers[name] = before + key
        model = context.client_request.model or context.request.model
        with closing(await upstream.send("POST", sample.rest, headers, body, model)) as reply:
            pieces, size = [], 0
            async for piece in reply.chunks():
                pieces.append(piece)
                size += len(piece)
                if size > _LARGEST:
                    raise _DroppedError("unread")
            return reply.status, b"".join(pieces)

    def _count(self, outcome: str) -> None:
        self._services.telemetry.metrics.count("shadows", outcome)


async def start(services: Services) -> Shadows | None:
    if services.store is None or services.compaction is None or not services.settings.agree_share:
        return None
    shadows = Shadows(services, services.store, services.compaction.audit_log)
    services.parts.push_async_callback(shadows.close)
    return shadows
