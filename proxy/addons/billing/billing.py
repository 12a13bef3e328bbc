"""The bill of each request: made when its reply is over, counted, and written behind it.

Laws
  A request has one bill, of all rounds that its upstream took; one that was refused has none, and neither has one that
  Narrows was to leave alone (`off`).
  No request waits for it, and none fails by it. What waits to be written is bounded.
  Where a conversation is deleted, what waits of it is added to its day alone; of a deleted tenant, nothing is.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from msgspec import structs

from policies.model.summary_record import SummaryCost
from policies.model.tokens import well_formed
from policies.money.bills import BillSums, Labels, RequestBill
from policies.money.prices import Prices
from proxy.addons.billing.measures import sums_of
from proxy.kernel.addons import Addon
from proxy.kernel.exchange import Exchange
from proxy.kernel.modes import Holdout
from proxy.memory import BillStore, Key
from proxy.memory.forgetting import ForgetRegistry
from proxy.memory.write_behind import PendingWrite, WriteBehindQueue
from proxy.requests import ReplyRound
from proxy.telemetry import Telemetry

_PENDING = 8_192
"""Bills that may wait; beyond it they are dropped, and counted."""
_INTERVAL = 2.0
"""Seconds from one time that all are written to the next."""
_LONGEST = 100
"""Characters of the name of a model, which comes from clients."""
_UNKNOWN = Prices()


class Billing(Addon):
    """Makes bills, and keeps them."""

    def __init__(
        self,
        store: BillStore,
        telemetry: Telemetry,
        forgets: ForgetRegistry,
        holdout: Holdout,
        preset: str,
        prices: Callable[[str, str], Prices],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`preset`: the name of the one that requests are served by where they choose none. `prices`: of a model at an
        upstream."""
        self._store = store
        self._telemetry = telemetry
        self._holdout = holdout
        self._preset = preset
        self._clock = clock
        self._prices = prices
        self._writes = WriteBehindQueue(
            telemetry, limit=_PENDING, tries=None, trouble="bills", full="bills_full", interval=_INTERVAL
        )
        forgets.register(self._writes.forget)

    async def finished(self, exchange: Exchange) -> None:
        rounds = [each for each in exchange.rounds if 200 <= each.status < 300]
        if not rounds or not rounds[0].request.is_billed:
            return
        try:
            bill = self._bill(rounds)
            self._count(bill, rounds)
            self._write(bill)
        except Exception as error:  # the client has its reply
            self._telemetry.log.error("not_billed", error=type(error).__name__, exc_info=True)
        else:
            exchange.bill = bill

    def summary(self, key: Key, labels: Labels, spent: SummaryCost) -> None:
        """Bill a summary or a digest that was made for this conversation, used or not."""
        bill = RequestBill(
            id=uuid4().hex,
            at=self._clock(),
            labels=_bounded(labels),
            conversation=key.conversation,
            prefix="",
            mode="summary",
            arm=self._holdout.arm(key),
            sums=BillSums(summaries=spent.dollars, unpriced=int(spent.known_dollars is None)),
        )
        self._telemetry.metrics.bill(bill)
        self._telemetry.summary_spent(spent)
        self._write(bill)

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        if lost := await self._writes.close():
            self._telemetry.log.warning("bills_lost", count=lost)

    def _bill(self, rounds: Sequence[ReplyRound]) -> RequestBill:
        first = rounds[0].request
        client_request, planned, headers = first.client_request, first.planned, first.headers
        conversation = planned.context.conversation if planned is not None else None
        model = planned.context.request.model if planned is not None else first.model
        prices = self._prices(model, client_request.upstream) if model else _UNKNOWN
        return RequestBill(
            id=client_request.id or uuid4().hex,
            at=self._clock(),
            labels=_bounded(
                Labels(
                    tenant=client_request.tenant,
                    owner=client_request.owner,
                    model=model,
                    preset=client_request.preset or self._preset,
                    api=client_request.dialect,
                    key=client_request.key,
                )
            ),
            conversation=planned.context.key.conversation if planned is not None else "",
            prefix=headers.get("x-narrows-prefix", ""),
            mode=headers.get("x-narrows-mode", ""),
            arm=first.arm,
            sums=sums_of(rounds, prices),
            edits=headers.get("x-narrows-edits", ""),
            added_ms=float(headers.get("x-narrows-ms") or 0),
            anchor=conversation.end_anchor(conversation.steps - 1) if conversation is not None else "",
        )

    def _count(self, bill: RequestBill, rounds: Sequence[ReplyRound]) -> None:
        self._telemetry.metrics.bill(bill)
        for each in rounds[1:]:
            answers = each.request.planned.context.answers if each.request.planned is not None else ()
            answered = sum(answer.succeeded for answer in answers)
            self._telemetry.recalled(answered, len(answers) - answered, each.usage)

    def _write(self, bill: RequestBill) -> None:
        key = Key(bill.labels.tenant, bill.conversation)
        pending = PendingWrite(key, self._write_all, record=bill, together=True, without_conversation=_of_nobody)
        self._writes.put(pending)

    async def _write_all(self, row: Sequence[PendingWrite]) -> None:
        bills: list[Any] = [pending.record for pending in row]
        await self._store.add_bills(bills)


def _bounded(labels: Labels) -> Labels:
    return structs.replace(labels, model=well_formed(labels.model[:_LONGEST]))


def _of_nobody(bill: RequestBill) -> RequestBill:
    return structs.replace(bill, conversation="")
