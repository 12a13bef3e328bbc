"""The tools of requests: which definitions were sent, at what price, and which were called.

Laws
  A list that was seen before costs a look-up by its digest. What is remembered of lists is bounded, and so are the
  names of a list and their lengths: they come from clients.
  A call counts with the first request whose history holds it.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from cachetools import LRUCache

from policies.context import TokenCounter
from policies.dialects.deferring import list_digest
from policies.dialects.tool_lists import tool_sizes
from policies.model.conversation import Conversation
from policies.model.tokens import well_formed
from policies.money.bills import RequestBill, ToolUse, tool_price
from policies.money.prices import Prices, Usage
from proxy.event_loop import in_thread
from proxy.memory import OTHER
from proxy.requests import ReplyRound

_LISTS, _MOST, _LONGEST = 64, 500, 100
"""Lists that are remembered, names of a list (the others are OTHER), and characters of a name."""
_LARGE = 50_000
"""Bytes of a list that is read in a thread, so that nobody else waits."""


class ToolUses:
    def __init__(self, prices: Callable[[str, str], Prices]) -> None:
        self._prices = prices
        self._lists: LRUCache[str, Mapping[str, int]] = LRUCache(_LISTS)

    async def of(self, bill: RequestBill, rounds: Sequence[ReplyRound]) -> ToolUse | None:
        """None where the request brings no tools, or could not be read."""
        first, planned = rounds[0].request, rounds[0].request.planned
        received = planned.context.received if planned is not None else None
        if planned is None or received is None or not received.request.brings_tools:
            return None
        listed = await self._sizes(received.request.tool_list, received.count)
        deferred = planned.context.tools.tools
        absent = {_short(name) for name in deferred.names} if deferred is not None else ()
        definitions = tuple((name, size) for name, size in listed.items() if size and name not in absent)
        calls = tuple(name for name in map(_short, _new_calls(received.conversation)) if name in listed)
        scale, total = planned.context.calibration.ratio, sum(size for _, size in definitions)
        usages = [each.usage for each in rounds if each.usage is not None]
        usages = usages or [Usage(bill.sums.prompt, bill.sums.cached, bill.sums.written, 0)]
        prices = self._prices(bill.labels.model, first.client_request.upstream)
        dollars = tool_price(round(total * scale), usages, prices)
        return ToolUse(definitions=definitions, calls=calls, scale=scale, each=dollars / total if total else 0.0)

    async def _sizes(self, tools: bytes, count: TokenCounter) -> Mapping[str, int]:
        digest = list_digest(tools)
        if digest not in self._lists:
            read = in_thread(_sizes, tools, count) if len(tools) > _LARGE else None
            self._lists[digest] = await read if read is not None else _sizes(tools, count)
        return self._lists[digest]


def _sizes(tools: bytes, count: TokenCounter) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for tool, tokens in tool_sizes(tools, count):
        name = _short(tool)
        name = name if name in sizes or len(sizes) < _MOST else OTHER
        sizes[name] = sizes.get(name, 0) + tokens
    return sizes


def _short(name: str) -> str:
    return well_formed(name[:_LONGEST]) or OTHER


def _new_calls(conversation: Conversation) -> Sequence[str]:
    """The tools that the newest reply calls, as often as it does."""
    calls = conversation.kinds.get("call", ())
    newest = conversation.ends[-2] if conversation.steps > 1 else len(conversation.blocks)
    return [conversation.blocks[at].tool for at in calls[bisect_left(calls, newest) :]]
