"""The wording of what stands in the place of something hidden.

Laws: derived from content alone (no clock, counter or random id); never promises a way back that is not there; a text
that merely contains our marker is neither stripped nor obeyed.
"""

import re

from policies.tools import ToolKind

MARK = "[narrows:"
"""How every text of ours begins."""


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


def way_back(kind: ToolKind) -> str:
    """The last line of a shortened output: how to see the rest."""
    return f"{MARK} {_AGAIN[kind]} for the rest]"


def gone(kind: ToolKind) -> str:
    """An output of which nothing is shown."""
    return f"{MARK} output left out; {_AGAIN[kind]} to see it]"


def clipped(characters: int) -> str:
    """A whole argument that was left out: nothing of it is left to be copied by mistake."""
    return f"{MARK} argument of {characters} chars left out; it was carried out as written]"


def repeated(tool: str, first_words: str) -> str:
    """An output that stands word for word at an earlier place of the same request."""
    return f"{MARK} same output as above{f', {tool} `{first_words}`' if first_words else ''}]"


def superseded(tool: str) -> str:
    """An output that the same call gave again later."""
    return f"{MARK} old output; the same {f'{tool} ' if tool else ''}call was made again below]"


_WAY_BACK = re.compile(rf"{re.escape(MARK)}[^\]]*\b(?:{'|'.join(_AGAIN.values())}|Run a tool again)\b")


def names_way_back(text: str) -> bool:
    """Whether a text of ours says how to see what it hides."""
    return bool(_WAY_BACK.search(text))


def shortened() -> str:
    """The end of an assistant's prose that was shortened."""
    return f"{MARK} shortened]"


def left_out(turns: int, tools: str) -> str:
    """A run of whole turns that did not fit the window."""
    used = f"; they used: {tools}. Run a tool again if needed." if tools else ""
    return f"{MARK} {turns} earlier turns left out to fit the window{used}]"
