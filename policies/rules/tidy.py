"""Terminal codes, overwritten progress lines and needless white space are removed from outputs when they arrive.

Files are never touched: their white space may be quoted by the next edit. The recall tool has the output byte for byte.
"""

import re
from collections.abc import Iterator

import msgspec

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.parameters import parameter
from policies.rules.base import ConfiguredPolicy, large_outputs, policy
from policies.text.lines import is_json
from policies.text.stubs import tidied_output
from policies.tools import ToolKind


@policy
class Tidy(ConfiguredPolicy):
    why = "terminal codes, overwritten progress lines and white space, which have no meaning"

    saves: int = parameter("tokens", "what must be saved, at least")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        for i in large_outputs(conversation, context, context.aged(conversation, 0), self.saves):
            block = conversation.blocks[i]
            if is_tidy(block.text):  # nearly always
                continue
            kind = context.kind(conversation, i)
            tidy = tidied(block.text, kind)
            if tidy != block.text:
                text = f"{tidy.rstrip()}\n{tidied_output(kind, context.ref(conversation, i))}"
                if block.tokens - context.count(text) >= self.saves:
                    yield Replace(block.anchor, text, "tidy", lossless=True)


# --- outputs without what means nothing to a reader ---
# Terminal codes, overwritten progress, blanks, JSON's white space.
# Laws: nothing a terminal would show of a command's output is removed but blanks at the ends of lines and blank lines
# beyond one; of JSON only white space between tokens, so that names, order and spelling of every value stay; a diff
# keeps its blanks, because they are those of a file. Linear in the text.

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[()][0-9A-B]|[=>78])")
_BLANKS = re.compile(r"(?<![ \t])[ \t]{2,}+$", re.M)
"""From the first blank of a run only: from each one, a long run would take quadratic time."""
_BLANK_LINES = re.compile(r"\n{3,}")
_DIFF = re.compile(r"^(?:diff --git |@@ -\d|--- \S|\*\*\* )", re.M)


def tidied(text: str, kind: ToolKind) -> str:
    """The text as a reader needs it; unchanged where it is neither a command's output nor JSON."""
    if kind not in ("command", "data"):
        return text
    if is_json(text):
        try:
            return msgspec.json.format(text, indent=-1)
        except (msgspec.DecodeError, RecursionError):  # half of a surrogate pair, or very deep
            return text
    if kind == "data":
        return text
    text = _ESCAPES.sub("", text) if "\x1b" in text else text
    text = "\n".join(map(_without_overwritten, text.split("\n"))) if "\r" in text else text
    return text if _DIFF.search(text) else _BLANK_LINES.sub("\n\n", _BLANKS.sub("", text))


def is_tidy(text: str) -> bool:
    """True where `tidied` leaves a text as it is, whatever its kind; a quick guess that is never wrongly yes."""
    marks = ("\x1b", "\r", "\n\n\n", " \n", "\t\n")
    return not (text.lstrip()[:1] in ("{", "[") or text[-1:] in (" ", "\t") or any(mark in text for mark in marks))


def _without_overwritten(line: str) -> str:
    """A line as it stands after all that a carriage return had written over."""
    line, end = (line[:-1], "\r") if line.endswith("\r") else (line, "")
    final = ""
    for written in reversed(line.split("\r")):
        final += written[len(final) :]
    return final + end
