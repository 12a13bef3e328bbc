"""The log of a conversation as a file for people: lines of JSON, or Markdown.

Laws
  In JSON each message stands as the client wrote it, but for line breaks between its tokens.
  In Markdown no text can pass for a heading: every line of it is indented as code is. No text holds a control character
  of terminals or of the direction of writing: a visible character stands in its place.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from proxy.memory import StoredText

_WORD = re.compile(r"[^\w.:-]+")
_NAME_CHARACTERS = 64
"""Characters of a name that stands in a heading."""
_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_VISIBLE: Mapping[int, int] = {
    **{code: 0x2400 + code for code in range(0x20) if code != ord("\t")},
    0x7F: 0x2421,
    **dict.fromkeys(
        (*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD
    ),
}
"""Replacements for control characters: their pictures in Unicode, where there are any."""


def moment(at: float) -> str:
    """A time in seconds since 1970, in ISO 8601."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _is_cut(texts: Sequence[StoredText]) -> bool:
    """Whether messages are missing before some of these: the oldest are deleted where a log is full."""
    names = {text.name for text in texts}
    return any(text.about["parent"] and text.about["parent"] not in names for text in texts)


def json_head(conversation: str, texts: Sequence[StoredText]) -> bytes:
    """The first line: the conversation and the number of messages."""
    return as_json({"conversation": conversation, "messages": len(texts), "earlier_gone": _is_cut(texts)}) + b"\n"


def json_lines(texts: Iterable[StoredText]) -> bytes:
    return b"".join(map(_line, texts))


def markdown_head(conversation: str, texts: Sequence[StoredText]) -> bytes:
    """The beginning: the conversation and the number of messages."""
    gone = "\nThe oldest messages are gone: the log was full.\n" if _is_cut(texts) else ""
    head = f"# Conversation\n\n{_indented(conversation)}\n\nMessages: {len(texts)}\n{gone}"
    return head.encode("utf-8", "replace")


def markdown(texts: Iterable[StoredText]) -> bytes:
    return "".join(part for text in texts for part in _section(text)).encode("utf-8", "replace")


def _line(text: StoredText) -> bytes:
    """A message on one line; as a string where it is no JSON."""
    about, raw = text.about, text.text.encode("utf-8", "surrogateescape")
    place = {name: about[name] for name in ("index", "role", "parent")} | {"digest": about.get("digest")}
    reply = {"returned": False} if "reply" in about else {}
    head = as_json({"name": text.name, **place, **reply, "at": moment(float(about["at"]))})
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:  # this one accepts lone surrogates, and numbers beyond any float
            json.loads(raw)
        except (ValueError, RecursionError):
            raw = as_json(raw.decode("utf-8", "replace"))
    return head[:-1] + b',"message":' + raw.translate(_BREAKS) + b"}\n"


def _section(text: StoredText) -> Iterator[str]:
    about, dialect = text.about, DIALECTS.get(str(text.about["dialect"]))
    follows = f" (follows {about['parent']})" if about["parent"] else ""
    role, at = _word(str(about["role"])), moment(float(about["at"]))
    yield f"\n## {about['index']} {role}\n\n{text.name}{follows}, {at}\n"
    raw = text.text.encode("utf-8", "surrogateescape")
    if about["index"] == -1 or dialect is None:
        try:  # the instructions at the head of a prompt
            lead = json.loads(raw)
            texts = [lead] if isinstance(lead, str) else [str(block["text"]) for block in lead]
        except (ValueError, TypeError, KeyError, RecursionError):
            texts = [raw.decode("utf-8", "replace")]
        yield "\n" + _indented("\n\n".join(texts)) + "\n"
        return
    for part in dialect.read(raw, len).parts:
        tool = f" {_word(part.tool)}" if part.tool else ""
        yield f"\n*{part.kind}{tool}*\n\n{_indented(part.text)}\n"


def _indented(text: str) -> str:
    """The text as code. Every kind of line break counts, so that no reader sees a line that is not indented."""
    return "\n".join(f"    {line.translate(_VISIBLE)}" for line in text.splitlines()) or "    "


def _word(name: str) -> str:
    """A name from a client, made fit for a heading."""
    return _WORD.sub("_", name[:_NAME_CHARACTERS])
