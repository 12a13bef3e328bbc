"""What upstreams have shown: how large a model's window is, where a prompt was too long; which models take no cache
marks of ours; what their caches forget; and how far our counts of tokens are off. Only this process knows.

Laws
  A learned window only makes a budget smaller.
  It counts for an hour, and no longer once the upstream takes a prompt that is larger.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cachetools import LRUCache, TTLCache

from policies.dialects.overflow import Overflow
from policies.model.tokens import Calibration
from policies.money.prices import NO_MARK, Budget, BudgetLimits, Prices
from proxy.config import Settings
from proxy.memory.conversation import LiveConversation
from proxy.requests import ClientRequest, PlannedRequest, RequestContext, UpstreamRequest
from proxy.upstreams.price_book import LearnedCaches, PriceBook

_SECONDS = 3_600.0
"""Seconds for which what was said counts: an error may repeat what a client wrote, and an upstream may change."""
SHARE = 0.7
"""Where a message names no window, a prompt may be so large in the future, as a share of the one that was too long."""
_NEAR = 0.5
"""The share of the window from which on an upstream may find a prompt too long: counts may be so far off."""


@dataclass(frozen=True, slots=True)
class LearnedWindow:
    """In the upstream's own tokens."""

    window: int | None = None
    prompt: int | None = None
    """The most tokens of a prompt; None where that follows from the window."""
    with_answer: bool = False
    """Whether what a request allows for the answer counts against the window."""

    def after(self, overflow: Overflow, sent: int) -> "LearnedWindow":
        """With what is said of a prompt that had about so many tokens. The newest word on the window counts."""
        with_answer = self.with_answer or overflow.with_answer
        if overflow.window is not None:
            return LearnedWindow(overflow.window, None, with_answer)
        return LearnedWindow(self.window, min(int(SHARE * sent), self.prompt or sent), with_answer)

    def above(self, prompt: int) -> "LearnedWindow":
        """What is left of it after a prompt of so many tokens was taken: a smaller window was never the model's."""
        window = None if self.window is not None and self.window < prompt else self.window
        return replace(self, window=window, prompt=self.prompt and max(self.prompt, prompt))

    def budget(self, limits: BudgetLimits, prices: Prices, answer: int | None, *, has_floor: bool) -> Budget:
        """The budget for this model: at most what the upstream takes beside an answer of so many tokens."""
        windows = [window for window in (self.window, limits.window) if window is not None]
        limits = replace(limits, window=min(windows, default=None))
        budget = limits.budget(prices, answer, has_floor=has_floor)
        caps = [self.prompt or 0, int((self.room(answer) or 0) * limits.high)]  # where no prompt fits, none is made to
        high = min([budget.high, *filter(None, caps)])
        low, floor = budget.low * high // budget.high, budget.floor * high // budget.high
        if budget.high == NO_MARK:
            floor = min(budget.floor, high // 3)
        return budget if high == budget.high else replace(budget, high=high, low=low, floor=floor, mark="window")

    def room(self, answer: int | None) -> int | None:
        """The most tokens that a prompt may have beside an answer of so many; None where nobody has said."""
        beside = answer if self.with_answer and answer else 0
        return None if self.window is None else max(0, self.window - beside)


class Learned:
    def __init__(self, settings: Settings, price_book: PriceBook, clock: Callable[[], float]) -> None:
        self._calibrates = settings.calibrate
        self._prices_of = price_book.prices
        self.caches = LearnedCaches()
        self._ratios: LRUCache[str, float] = LRUCache(1024)
        """Of counts, by model."""
        self._windows: TTLCache[tuple[str, str, str], LearnedWindow] = TTLCache(4096, _SECONDS, clock)
        """By tenant, upstream and model: what an upstream says may repeat what a client wrote, and no client's text
        moves what is sent for another."""
        self._refused_marks: LRUCache[tuple[str, str], bool] = LRUCache(1024)
        """The upstreams that answered 400 to cache marks of ours, and for which models."""

    def window(self, client_request: ClientRequest, model: str) -> LearnedWindow | None:
        """What the upstream of a request has said of this model's window."""
        return self._windows.get(_served_by(client_request, model)) if self._windows else None

    def calibration(self, live: LiveConversation, model: str) -> Calibration:
        return live.calibration or Calibration(self._ratios.get(model, 1.0))

    def refuses_marks(self, upstream: str, model: str) -> bool:
        return (upstream, model) in self._refused_marks

    def note_refused_marks(self, upstream_request: UpstreamRequest) -> None:
        """This model gets no cache marks of ours at its upstream any more."""
        assert upstream_request.planned is not None
        model = upstream_request.planned.context.request.model
        self._refused_marks[upstream_request.client_request.upstream, model] = True

    def note_overflow(self, upstream_request: UpstreamRequest, overflow: Overflow) -> None:
        """The upstream found this prompt too long. Where its own count is larger than ours, that calibrates."""
        planned, client_request = upstream_request.planned, upstream_request.client_request
        assert planned is not None
        model, counted = planned.context.request.model, upstream_request.tokens_sent
        sent = self.calibration(planned.context.live, model).estimate(counted)
        least = overflow.prompt or (0 if overflow.with_answer else overflow.window) or 0
        if least > sent and self._calibrates:
            self.calibrate(planned, counted, least)
        elif least > sent and overflow.window:  # in our own count, where nothing may be calibrated
            overflow = replace(overflow, window=overflow.window * sent // least)
        before = self.window(client_request, model) or LearnedWindow()
        self._windows[_served_by(client_request, model)] = before.after(overflow, sent)

    def note_usage(self, planned: PlannedRequest, sent: int, reported: int) -> None:
        """The provider took a request that was sent with `sent` counted tokens, and reported so many."""
        client_request, model = planned.context.client_request, planned.context.request.model
        if (learned := self.window(client_request, model)) is not None:
            left = learned.above(reported if self._calibrates else sent)
            if left != learned:  # else its hour would begin anew
                self._windows[_served_by(client_request, model)] = left
        if self._calibrates:
            self.calibrate(planned, sent, reported)

    def calibrate(self, planned: PlannedRequest, sent: int, reported: int) -> None:
        """The provider reported so many tokens for a request that was sent with `sent` counted ones."""
        live, model = planned.context.live, planned.context.request.model
        learned = live.calibration = self.calibration(live, model).learn(sent, reported)
        self._ratios[model] = learned.ratio

    def may_overflow(self, context: RequestContext, tokens: int) -> bool:
        """Whether it is worth to look whether the upstream takes a prompt of so many tokens."""
        client_request, model = context.client_request, context.request.model
        learned = self.window(client_request, model)
        window = (learned and learned.window) or self._prices_of(model, client_request.upstream).window
        return window is None or context.calibration.estimate(tokens) > _NEAR * window

    def fits(self, planned: PlannedRequest) -> bool:
        """Whether the window takes the prompt beside its answer; true where nobody has said how large it is."""
        client_request, request = planned.context.client_request, planned.context.request
        tokens = planned.context.calibration.estimate(planned.tokens_sent)
        window = self._prices_of(request.model, client_request.upstream).window
        learned = self.window(client_request, request.model) or LearnedWindow()
        room = learned.room(request.reserve)
        fits = window is None or tokens + (request.reserve or 0) <= window
        return fits and (room is None or tokens <= room)


def _served_by(client_request: ClientRequest, model: str) -> tuple[str, str, str]:
    return client_request.sender.tenant, client_request.upstream, model
