"""The pages of a log: all messages, the requests as the model saw them, the recorded session, and what became of files.

Laws
  Bytes are those that were sent, or there is a reason why there are none.
  Whoever may read the log may read this, and nobody else.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from policies.model.conversation import Conversation, converse
from policies.tools.file_changes import ToolCall, changes_of
from proxy.addons.archive.logged_requests import ConversationLog, DamagedError, MissingError
from proxy.addons.archive.sent_requests import is_message
from proxy.addons.pages import export
from proxy.addons.pages.answers import PRIVATE, PageParts, json_page, nothing
from proxy.addons.pages.export import moment
from proxy.errors import ApiError
from proxy.memory import MESSAGES, Key, StoredText

T = TypeVar("T")
_BATCH = 64
"""Messages that are read and written at once."""
UNSEEN = (
    "Only what calls of edit, patch and write tools say is here, and what was read before. What a shell or a program "
    "changed cannot be seen."
)


@dataclass(frozen=True, slots=True)
class LogPages:
    """Answers requests for what a log holds."""

    parts: PageParts
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """A whole log takes several times its size in memory: one is put together at once."""

    async def history(self, request: web.BaseRequest, name: str) -> web.Response:
        """The log of all messages, as lines of JSON or as Markdown."""
        log = await self._log(request, name)
        listed = [*filter(is_message, log.texts)]
        if not listed:
            raise nothing()
        if "text/markdown" in request.headers.get("Accept", ""):
            head, body, content_type = export.markdown_head, export.markdown, "text/markdown; charset=utf-8"
        else:
            head, body, content_type = export.json_head, export.json_lines, "application/x-ndjson"
        pieces = [head(name, listed)]
        for start in range(0, len(listed), _BATCH):
            batch = listed[start : start + _BATCH]
            names = [each.name for each in batch]
            texts = await self.parts.ask("history", self.parts.store.texts(log.key, MESSAGES, names))
            # those that were deleted meanwhile are left out
            complete = [StoredText(each.name, texts[each.name], each.about) for each in batch if each.name in texts]
            pieces.append(await asyncio.to_thread(body, complete))
        return web.Response(body=b"".join(pieces), headers={"Content-Type": content_type, "Vary": "Accept", **PRIVATE})

    async def requests(self, request: web.BaseRequest, name: str) -> web.Response:
        """The requests of a branch, by their numbers."""
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
        return web.Response(body=body, headers={"Content-Type": "application/json", **PRIVATE})

    async def session(self, request: web.BaseRequest, name: str) -> web.Response:
        """The conversation as a recorded session."""
        log = await self._log(request, name)
        async with self.turn:
            session = await self._read(log.session(request.query.get("branch", "")))
            body = await asyncio.to_thread(as_json, session)
            del session
        return web.Response(body=body, headers={"Content-Type": "application/json", **PRIVATE})

    async def changes(self, request: web.BaseRequest, name: str) -> web.Response:
        """What calls did to each file, as JSON or as a diff."""
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
        headers = {"Content-Type": kind, "Vary": "Accept", **PRIVATE}
        return web.Response(body=body, headers=headers)

    async def _log(self, request: web.BaseRequest, name: str) -> ConversationLog:
        """The log, as far as the caller may see it. Raises ApiError."""
        grant = self.parts.permit(request, "conversations")
        key = Key(self.parts.who(request).tenant, name)
        stored = await self.parts.ask("history", self.parts.store.list_texts(key, MESSAGES))
        texts = grant.visible((str(text.about["owner"]), text) for text in stored)
        if not texts:
            raise nothing()
        return ConversationLog(self.parts.store, key, texts)

    async def _read(self, answer: Awaitable[T]) -> T:
        """What the log says. Raises ApiError."""
        try:
            return await self.parts.ask("history", answer)
        except MissingError as error:
            raise ApiError(404, str(error), "not_in_log") from error
        except DamagedError as error:
            raise ApiError(409, str(error), "log_damaged") from error


async def _listed(log: ConversationLog, branch: str) -> list[dict[str, Any]]:
    return [
        {
            "number": number,
            "rounds": len(row),
            "at": moment(float(row[0].about["at"])),
            "branch": row[0].about["parent"],
        }
        for number, row in log.requests(branch).items()
    ]


def file_changes(dialect: str, session: Mapping[str, Any]) -> dict[str, Any]:
    """What the calls of a session did to files, and which of them may have changed files unseen."""
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
        for change in row["changes"]:
            lines.append(f"# {_line(row['path'])}: message {change['message']}, {_line(change['tool'])}\n")
            lines.append(change["diff"])
    return "".join(lines).encode("utf-8", "replace")


def _line(text: str) -> str:
    """A name from a client, on one line."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _calls(conversation: Conversation) -> Iterator[ToolCall]:
    outputs: dict[int, str] = {}
    for block in conversation.blocks:
        if block.kind == "result" and block.answers is not None:
            outputs[block.answers] = outputs.get(block.answers, "") + block.text
    for at, block in enumerate(conversation.blocks):
        if block.kind == "call":
            yield ToolCall(block.message, block.tool, block.text, outputs.get(at, ""))
