"""The log of a conversation as people read it: lines of JSON, or Markdown.

Laws
  In JSON each message stands as the client wrote it, but for line breaks between its tokens.
  In Markdown no text can pass for a heading: every line of it is indented as code is; and none holds what a terminal
  obeys, or what turns the order of letters around: something to look at stands there instead.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from proxy.store import Leaf

_WORD = re.compile(r"[^\w.:-]+")
_LONGEST = 64
"""Characters of a name that stands in a heading."""
_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_OBEYED: Mapping[int, int] = {
    **{code: 0x2400 + code for code in range(0x20) if code != ord("\t")},
    0x7F: 0x2421,
    **dict.fromkeys(
        (*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD
    ),
}
"""What stands in the place of controls, of terminals and of the direction of writing: their pictures, where there are
any."""


def moment(at: float) -> str:
    """A time, as ISO 8601 writes it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def is_cut(leaves: Sequence[Leaf]) -> bool:
    """Whether messages are missing before some of these: the oldest go where a log is full."""
    names = {leaf.name for leaf in leaves}
    return any(leaf.about["parent"] and leaf.about["parent"] not in names for leaf in leaves)


def json_head(conversation: str, leaves: Sequence[Leaf]) -> bytes:
    """The first line: what the log is of."""
    return as_json({"conversation": conversation, "messages": len(leaves), "earlier_gone": is_cut(leaves)}) + b"\n"


def json_lines(leaves: Iterable[Leaf]) -> bytes:
    """A line for each message."""
    return b"".join(map(_line, leaves))


def markdown_head(conversation: str, leaves: Sequence[Leaf]) -> bytes:
    """What the log is of."""
    said = f"# Conversation\n\n{_indented(conversation)}\n\nMessages: {len(leaves)}\n"
    return (said + ("\nThe oldest messages are gone: the log was full.\n" if is_cut(leaves) else "")).encode(
        "utf-8", "replace"
    )


def markdown(leaves: Iterable[Leaf]) -> bytes:
    """A section for each message."""
    return "".join(part for leaf in leaves for part in _section(leaf)).encode("utf-8", "replace")


def _line(leaf: Leaf) -> bytes:
    told, raw = leaf.about, leaf.text.encode("utf-8", "surrogateescape")
    said = {name: told[name] for name in ("index", "role", "parent")}
    head = as_json({"name": leaf.name, **said, "at": moment(float(told["at"]))})
    return head[:-1] + b',"message":' + _value(raw) + b"}\n"


def _value(raw: bytes) -> bytes:
    """The message as one value on one line; as a string where it is no JSON."""
    return raw.translate(_BREAKS) if _is_json(raw) else as_json(raw.decode("utf-8", "replace"))


def _is_json(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:  # which knows lone surrogates, and numbers beyond any float
            json.loads(raw)
        except (ValueError, RecursionError):
            return False
    return True


def _section(leaf: Leaf) -> Iterator[str]:
    told, dialect = leaf.about, DIALECTS.get(str(leaf.about["dialect"]))
    follows = f" (follows {told['parent']})" if told["parent"] else ""
    role, at = _word(str(told["role"])), moment(float(told["at"]))
    yield f"\n## {told['index']} {role}\n\n{leaf.name}{follows}, {at}\n"
    raw = leaf.text.encode("utf-8", "surrogateescape")
    if told["index"] == -1 or dialect is None:
        yield f"\n{_indented(_lead(raw))}\n"
        return
    for part in dialect.read(raw, len).parts:
        tool = f" {_word(part.tool)}" if part.tool else ""
        yield f"\n*{part.kind}{tool}*\n\n{_indented(part.text)}\n"


def _lead(raw: bytes) -> str:
    """The text that leads a prompt; where it is not read as one, what was written."""
    try:
        said = json.loads(raw)
        texts = [said] if isinstance(said, str) else [str(block["text"]) for block in said]
    except (ValueError, TypeError, KeyError, RecursionError):
        return raw.decode("utf-8", "replace")
    return "\n\n".join(texts)


def _indented(text: str) -> str:
    """The text as code. Every kind of line break is one, so that no reader sees a line that is not indented."""
    return "\n".join(f"    {line.translate(_OBEYED)}" for line in text.splitlines()) or "    "


def _word(name: str) -> str:
    """A name from outside, as it can stand in a heading."""
    return _WORD.sub("_", name[:_LONGEST])
