"""The pictures of requests and their messages."""

from collections.abc import Collection, Mapping, Sequence

from proxy.drawing.charts import legend, skyline, stack, strip
from proxy.drawing.html import Markup, together
from proxy.lab.breakdown import TOOLS, MessageSize
from proxy.lab.replay.report import RequestResult

KINDS: Mapping[str, str] = {
    TOOLS: "tool schemas",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "call": "call: the arguments of a tool",
    "result": "result: the output of a tool",
    "opaque": "opaque: images, thinking and the like",
}
"""What the kinds of a message are, in the order of every stack."""


def stack_of_kinds(tokens: Mapping[str, int], scale: int) -> Markup:
    """One bar of the kinds of blocks, each in its colour."""
    return stack(((kind_class(kind), tokens.get(kind, 0)) for kind in KINDS), scale)


def legend_of_kinds(present: Collection[str]) -> Markup:
    """What the colours of bars mean, for the kinds that there are."""
    return legend({kind_class(kind): meaning for kind, meaning in KINDS.items() if kind in present})


def messages(sizes: Sequence[MessageSize]) -> Markup:
    """One column for each message, so that many are seen at once."""
    return skyline([(size.tokens.before, size.tokens.after, kind_class(size.kind)) for size in sizes])


def requests(results: Sequence[RequestResult]) -> Markup:
    """One column for each request: its tokens as sent, and behind it as they would have been; below it, one mark: what
    its reply said of the prefix."""
    columns = skyline([(result.tokens_sent.without, result.tokens_sent.with_, "ink") for result in results])
    return together(columns, strip([result.prefix for result in results]))


def kind_class(kind: str) -> str:
    """The class of a kind, which says its colour."""
    return f"k-{kind}" if kind in KINDS else "k-other"
