"""The pages of a log: all messages, the requests as the model saw them, the recorded session, and what became of files.

Laws
  Bytes are those that were sent, or there is a reason why there are none.
  Whoever may read the log may read this, and nobody else.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from policies.model.conversation import Conversation, converse
from policies.tools.file_changes import ToolCall, changes_of
from proxy.addons.archive.sent_requests import ConversationLog, DamagedError, MissingError, is_message
from proxy.addons.pages.answers import PageParts, json_page, moment, nothing, text_page
from proxy.addons.pages.conversations import Page
from proxy.errors import ApiError
from proxy.memory import MESSAGES, StoredText

T = TypeVar("T")
_BATCH = 64
"""Messages that are read and written at once."""
UNSEEN = (
    "Only what calls of edit, patch and write tools say is here, and what was read before. What a shell or a program "
    "changed cannot be seen."
)


@dataclass(frozen=True, slots=True)
class LogPages:
    parts: PageParts
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """A whole log takes several times its size in memory: one is put together at once."""

    @property
    def table(self) -> Mapping[str, Page]:
        return {
            "history": self.history,
            "requests": self.requests,
            "requests/": self.request,
            "session": self.session,
            "changes": self.changes,
        }

    async def history(self, request: web.BaseRequest, name: str) -> web.Response:
        log = await self._log(request, name)
        listed = [*filter(is_message, log.texts)]
        if not listed:
            raise nothing()
        if "text/markdown" in request.headers.get("Accept", ""):
            head, body, content_type = markdown_head, markdown, "text/markdown; charset=utf-8"
        else:
            head, body, content_type = json_head, json_lines, "application/x-ndjson"
        pieces = [head(name, listed)]
        for start in range(0, len(listed), _BATCH):
            batch = listed[start : start + _BATCH]
            names = [each.name for each in batch]
            texts = await self.parts.ask("history", self.parts.store.texts(log.key, MESSAGES, names))
            # those that were deleted meanwhile are left out
            complete = [StoredText(each.name, texts[each.name], each.about) for each in batch if each.name in texts]
            pieces.append(await asyncio.to_thread(body, complete))
        return text_page(b"".join(pieces), content_type, {"Vary": "Accept"})

    async def requests(self, request: web.BaseRequest, name: str) -> web.Response:
        log = await self._log(request, name)
        rows = await self._read(_listed(log, request.query.get("branch", "")))
        return json_page({"conversation": name, "requests": rows})

    async def request(self, request: web.BaseRequest, name: str) -> web.Response:
        """The bytes that the model saw as one request, or as a round of it."""
        number, round_ = request.path.rpartition("/")[2], request.query.get("round", "0")
        if not (number.isdecimal() and round_.isdecimal() and len(number + round_) < 12):
            raise ApiError(400, "The request in the path and `round` must be numbers.", "bad_parameter", "round")
        log = await self._log(request, name)
        async with self.turn:
            body = await self._read(log.body(int(number), int(round_), request.query.get("branch", "")))
        return text_page(body, "application/json")

    async def session(self, request: web.BaseRequest, name: str) -> web.Response:
        log = await self._log(request, name)
        async with self.turn:
            session = await self._read(log.session(request.query.get("branch", "")))
            body = await asyncio.to_thread(as_json, session)
            del session
        return text_page(body, "application/json")

    async def changes(self, request: web.BaseRequest, name: str) -> web.Response:
        log = await self._log(request, name)
        branch = request.query.get("branch", "")
        is_diff = "text/x-diff" in request.headers.get("Accept", "")
        async with self.turn:
            session = await self._read(log.session(branch))
            files = await asyncio.to_thread(file_changes, str(log.newest(branch).about["dialect"]), session)
            del session
            content: Mapping[str, Any] = {"conversation": name, **files}
            body = await asyncio.to_thread(as_diff if is_diff else as_json, content)
        kind = "text/x-diff; charset=utf-8" if is_diff else "application/json; charset=utf-8"
        return text_page(body, kind, {"Vary": "Accept"})

    async def _log(self, request: web.BaseRequest, name: str) -> ConversationLog:
        """The log, as far as the caller may see it. Raises ApiError."""
        key, grant = self.parts.named(request, name)
        rows = await self.parts.ask("history", self.parts.store.list_texts(key, MESSAGES))
        texts = grant.visible((str(text.about["owner"]), text) for text in rows)
        if not texts:
            raise nothing()
        return ConversationLog(self.parts.store, key, texts)

    async def _read(self, answer: Awaitable[T]) -> T:
        """The answer of the log. Raises ApiError."""
        try:
            return await self.parts.ask("history", answer)
        except MissingError as error:
            raise ApiError(404, str(error), "not_in_log") from error
        except DamagedError as error:
            raise ApiError(409, str(error), "log_damaged") from error


async def _listed(log: ConversationLog, branch: str) -> list[dict[str, Any]]:
    """The requests of a branch. Raises MissingError, which `_read` awaits."""
    return [
        {"number": at, "rounds": len(row), "at": moment(float(row[0].about["at"])), "branch": row[0].about["parent"]}
        for at, row in log.requests(branch).items()
    ]


def file_changes(dialect: str, session: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of files by the calls of a session, and calls that may have changed files unseen."""
    api = DIALECTS[dialect]
    conversation = converse([api.read(as_json(entry), len) for entry in session[api.fields.history]])
    changes, unseen = changes_of(_calls(conversation))
    files: dict[str, list[dict[str, Any]]] = {}
    for change in changes:
        files.setdefault(change.path, []).append({k: v for k, v in asdict(change).items() if k != "path"})
    rows = [{"path": path, "changes": of_it} for path, of_it in sorted(files.items())]
    calls = [{"message": each.message, "tool": each.tool} for each in unseen]
    return {"files": rows, "unseen_calls": calls, "note": UNSEEN}


def as_diff(files: Mapping[str, Any]) -> bytes:
    """The same as one text that `patch` and editors read; what is no diff stands before the first one of a file."""
    lines = [f"# {UNSEEN}\n# Calls that may have changed files unseen: {len(files['unseen_calls'])}\n"]
    for row in files["files"]:
        path = _on_one_line(row["path"])
        for change in row["changes"]:
            lines.append(f"# {path}: message {change['message']}, {_on_one_line(change['tool'])}\n")
            lines.append(change["diff"])
    return "".join(lines).encode("utf-8", "replace")


def _on_one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _calls(conversation: Conversation) -> Iterator[ToolCall]:
    outputs: dict[int, str] = {}
    for block in conversation.blocks:
        if block.kind == "result" and block.answers is not None:
            outputs[block.answers] = outputs.get(block.answers, "") + block.text
    for at, block in enumerate(conversation.blocks):
        if block.kind == "call":
            yield ToolCall(block.message, block.tool, block.text, outputs.get(at, ""))


# --- a log as a file for people: lines of JSON, or Markdown ---
# In JSON each message stands as the client wrote it, but for line breaks between its tokens. In Markdown no text can
# pass for a heading: every line of it is indented as code is. No text holds a control character of terminals or of the
# direction of writing: a visible character stands in its place.

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


def _is_cut(texts: Sequence[StoredText]) -> bool:
    """True where messages are missing before some of these: the oldest are deleted where a log is full."""
    names = {text.name for text in texts}
    return any(text.about["parent"] and text.about["parent"] not in names for text in texts)


def json_head(conversation: str, texts: Sequence[StoredText]) -> bytes:
    return as_json({"conversation": conversation, "messages": len(texts), "earlier_gone": _is_cut(texts)}) + b"\n"


def json_lines(texts: Iterable[StoredText]) -> bytes:
    return b"".join(map(_line, texts))


def markdown_head(conversation: str, texts: Sequence[StoredText]) -> bytes:
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
    return _WORD.sub("_", name[:_NAME_CHARACTERS])
