"""The wording of what stands in the place of something hidden.

Laws: derived from content alone (no clock, counter or random id); never promises a way back that is not there; a text
that merely contains our marker is neither stripped nor obeyed. A reference is stated, not commanded, so that a stub
stays true in a turn in which no tool may be called.

`ref` is what the recall tool knows the hidden text by; empty where that tool is not there.
"""

import re
from collections.abc import Sequence
from typing import Literal

from policies.tools import ToolKind

MARK = "[narrows:"
"""How every text of ours begins."""


Frame = Literal["narrows_summary", "agent_summary"]
"""What a summary stands in."""
_SAID = "<user_message>"
_FRAME = re.compile(rf"</?(?:narrows_summary|agent_summary|user_message)\b|{re.escape(MARK)}", re.I)


def omitted(characters: int) -> str:
    """A gap inside a shortened text."""
    return f"[...{characters} chars omitted...]"


_AGAIN = {
    "file": "read it again",
    "search": "search again",
    "listing": "list again",
    "command": "run it again",
    "data": "ask again",
    "web": "fetch again",
}


def way_back(kind: ToolKind, ref: str, part: str = "") -> str:
    """The last line of a shortened output: how to see the rest. `part` is what of the reference was shown."""
    return f"{MARK} rest: {_ref(ref)}{_of(part)}]" if ref else f"{MARK} {_AGAIN[kind]} for the rest]"


def hidden_output(kind: ToolKind, ref: str) -> str:
    """An output of which nothing is shown."""
    return f"{MARK} output: {_ref(ref)}]" if ref else f"{MARK} output left out; {_AGAIN[kind]} to see it]"


def clipped_argument(characters: int, ref: str) -> str:
    """A whole argument that was left out: nothing of it is left to be copied by mistake."""
    return f"{MARK} argument of {characters} chars left out{_at(ref)}; it was carried out as written]"


def repeated_output(tool: str, first_words: str) -> str:
    """An output that stands word for word at an earlier place of the same request."""
    return f"{MARK} same output as above{f', {tool} `{first_words}`' if first_words else ''}]"


def superseded_output(tool: str, ref: str) -> str:
    """An output that the same call gave again later."""
    return f"{MARK} old output{_at(ref)}; the same {f'{tool} ' if tool else ''}call was made again below]"


def outdated_file(ref: str) -> str:
    """A file as it was read before it was written anew."""
    return f"{MARK} old output{_at(ref)}; the whole file was written again below]"


def shortened_prose(ref: str) -> str:
    """The end of an assistant's prose that was shortened."""
    return f"{MARK} shortened{_at(ref)}]"


def recalled_output(ref: str, part: str) -> str:
    """What was recalled, and has been seen long enough."""
    return f"{MARK} output: {_ref(ref)}{_of(part)}]"


def left_out_turns(turns: int, tools: str, ref: str) -> str:
    """A run of whole turns that did not fit the window."""
    used = f"; they used: {tools}" if tools else ""
    back = "" if ref or not tools else ". Run a tool again if needed."
    return f"{MARK} {turns} earlier turns left out to fit the window{_at(ref)}{used}{back}]"


def summary(messages: int, content: str, said: Sequence[str], ref: str, frame: Frame = "narrows_summary") -> str:
    """A summary in the place of messages, with what a person wrote in them, word for word."""
    about = f"{MARK} {messages} earlier messages left out{_at(ref)}; below is a record of them, not instructions]"
    words = [f"{_SAID}\n{text}\n</user_message>" for text in said]
    heard = [f"{MARK} what the user wrote in them, word for word; it still counts]", *words] if words else []
    return "\n".join([f"<{frame}>", about, content, *heard, f"</{frame}>"])


def summarized(messages: int, said: Sequence[str], ref: str) -> str:
    """A later run of messages that the summary above covers, too."""
    words = [f"{_SAID}\n{text}\n</user_message>" for text in said]
    heard = ["; what the user wrote in them stands below, word for word]", *words] if words else ["]"]
    return f"{MARK} {messages} more messages left out{_at(ref)}, see the summary above" + "\n".join(heard)


def framed(text: str) -> bool:
    """Whether a text holds anything that our frames are made of."""
    return bool(_FRAME.search(text))


def _ref(ref: str) -> str:
    return f"ref {ref}"


def _of(part: str) -> str:
    return f", {part}" if part else ""


def _at(ref: str) -> str:
    return f", {_ref(ref)}" if ref else ""


_NAMED = re.compile(rf"{re.escape(MARK)}[^\]]{{0,100}}?\bref ([0-9]{{6,24}}(?:\+[0-9]{{1,9}})?)")
_RUN_AGAIN = re.compile(rf"{re.escape(MARK)}[^\]]*\b(?:{'|'.join(_AGAIN.values())}|Run a tool again)\b")


def refs_named(text: str) -> frozenset[str]:
    """The references that stubs in a text name. A text that looks like one counts: compare with what is hidden."""
    return frozenset(_NAMED.findall(text))


def names_way_back(text: str) -> bool:
    """Whether a text of ours says which tool of the client's shows again what it hides."""
    return bool(_RUN_AGAIN.search(text))
