"""The files of recordings: written whole, for their owner's eyes alone, sealed where encryption is on; deleted by
conversation, by tenant and by who sent it, and by size and age.

Laws
  No file stands there half written. A folder is its tenant's, a name says which conversation, who sent it, and how it
  began, each as a digest.
  Only files with the names of recordings are ever deleted.
  A recording is what the client sent last, with the reply to it, rewritten as the conversation grows; a branch that
  does not go on from it has a recording of its own. Bodies alone are recorded, never a header.
  Nothing waits for it, nothing fails by it: it is written in a thread, every half minute and in the end. What waits is
  bounded. What is deleted is not written any more.
  Chosen fields are left out, and the credential of the request, in any form in which it may stand. A field is chosen by
  its path (`messages.*.content`; `*` is any name or place, `$` everything), and all below it. A pattern is searched by
  RE2, in linear time; without one the whole value goes. Nothing is left out of the names of fields.
"""

import asyncio
import hmac
import json
import os
import re
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import re2  # type: ignore[import-untyped]  # it ships no types

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from proxy.addons.archive.request_times import Moments, RequestMoments, reply_starts, shared_moments, time_fields
from proxy.addons.archive.texts import ArchiveMemory
from proxy.config import Settings
from proxy.config.keyring import SEALED, Keyring, SealedError, keyring_of
from proxy.kernel.addons import HeldReply
from proxy.memory import Key, ttl_of
from proxy.memory.conversation import ParsedRequest
from proxy.memory.opening import StoreAccess
from proxy.requests import ClientRequest

_NAME = re.compile(r"([0-9a-f]{24})\.([0-9a-f]{12})\.[0-9a-f]{8}-[0-9]{1,4}\.(json|sealed|[0-9]+)")
"""With a number at the end it is half written, maybe by a process that died of it."""
_FOLDER = re.compile(r"[0-9a-f]{16}")
_PLACE = b"recording"
_MOST_ALIKE = 4
"""Recordings in which the times are looked up of requests that another process served, or that branches share."""
KEYS = "NARROWS_ENCRYPTION_KEY_ENV"
"""The variable that names the one with the keys."""


def _digest(name: str, length: int) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:length]


@dataclass(frozen=True, slots=True)
class Recordings:
    folder: Path
    keyring: Keyring | None = field(default=None, repr=False)

    def open(self) -> None:
        """Make the folder. Raises ValueError where it cannot be, or others may write there."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.stat()
        except OSError as error:
            raise ValueError(f"{self.folder} cannot be made ({error.strerror}); name another folder") from error
        if status.st_mode & 0o022:
            raise ValueError(f"others may write in {self.folder}; chmod 700 it, or name another folder")

    def place(self, tenant: str, conversation: str, owner: str, beginning: str, number: int) -> Path:
        """The file of a recording: of a conversation, by who sent it and how it begins, and its number among these."""
        name = f"{_digest(conversation, 24)}.{_digest(owner, 12)}.{_digest(beginning, 8)}-{number}"
        suffix = "sealed" if self.keyring is not None else "json"
        return self.folder / _digest(tenant, 16) / f"{name}.{suffix}"

    def write(self, file: Path, content: bytes) -> None:
        """Write a recording, whole. Raises OSError."""
        file.parent.mkdir(mode=0o700, exist_ok=True)
        half = file.with_suffix(f".{os.getpid()}")
        with suppress(FileNotFoundError):
            half.unlink()
        number = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(number, "wb") as stream:
                stream.write(self.keyring.seal(_PLACE, content) if self.keyring is not None else content)
            half.replace(file)
        except OSError:
            _unlink(half)
            raise

    def alike(self, file: Path) -> Iterator[bytes]:
        """The newest recordings that begin as the one in this file, itself among them."""
        rows: list[tuple[float, Path]] = []
        for each in file.parent.glob(f"{file.name.rpartition('-')[0]}-*{file.suffix}"):
            with suppress(FileNotFoundError):
                rows.append((each.stat().st_mtime, each))
        for _, each in sorted(rows, reverse=True)[:_MOST_ALIKE]:
            with suppress(OSError, SealedError):
                content = each.read_bytes()
                yield content if self.keyring is None else self.keyring.open(_PLACE, content)

    def delete(self, tenant: str, conversation: str | None = None, owner: str | None = None) -> int:
        """Delete what is of a tenant, of one of its conversations, of one who sent it. Returns how many there were."""
        return sum(map(_unlink, self.of(tenant, conversation, owner)))

    def of(self, tenant: str, conversation: str | None = None, owner: str | None = None) -> list[Path]:
        wanted = (
            None if conversation is None else _digest(conversation, 24),
            None if owner is None else _digest(owner, 12),
        )
        files = self._files(_digest(tenant, 16))
        return [file for file, name in files if all(w in (None, n) for w, n in zip(wanted, name, strict=True))]

    def trim(self, limit: int, ttl: float) -> int:
        """Delete what is older, and the oldest of what is more. Returns how many had to go for their size."""
        rows: list[tuple[float, int, Path]] = []
        for file, _ in self._files():
            with suppress(FileNotFoundError):
                status = file.stat()
                rows.append((status.st_mtime, status.st_size, file))
        size, gone, now = sum(row[1] for row in rows), 0, time.time()
        for at, of_it, file in sorted(rows):
            if at < now - ttl or size > limit:
                gone += _unlink(file) and at >= now - ttl
                size -= of_it
        return gone

    def _files(self, only: str = "") -> Iterator[tuple[Path, tuple[str, str]]]:
        for folder in [self.folder / only] if only else [*self.folder.iterdir()]:
            if _FOLDER.fullmatch(folder.name) and folder.is_dir():
                for file in [*folder.iterdir()]:
                    if match := _NAME.fullmatch(file.name):
                        yield file, (match[1], match[2])


def _unlink(file: Path) -> bool:
    with suppress(FileNotFoundError):
        file.unlink()
        return True
    return False


def opened(content: bytes, name: str) -> bytes:
    """A recording of this name before it was sealed, by the keys of the environment. Raises ValueError."""
    if content[:1] != bytes([SEALED]):
        return content
    keyring = keyring_of(os.environ.get(KEYS, ""))
    if keyring is None:
        raise ValueError(f"{name} is encrypted: {KEYS} must name the variable with its keys")
    try:
        return keyring.open(_PLACE, content)
    except SealedError as error:
        raise ValueError(f"{name} is encrypted and cannot be opened: {error}") from error


# --- recorded sessions, as `narrows replay`, `explain` and `load` read them ---
# A request of a client, and the reply to it.
# Law: cache marks move from request to request, and a replay sets them where clients do, so a session has none; it says
# where its client set none at all.

_OURS = ("cache_marks", "started_at", "times")
"""Fields of a session that no request has."""
_MARKS = {mark for api in DIALECTS.values() for mark in api.marks.styles}
_HOLDERS = ("content", "source", "output", "function")
"""Fields that hold what may carry a mark; what a model wrote as arguments is none of them."""


def session_of(dialect: str, body: str | bytes, replies: Sequence[str | bytes]) -> Mapping[str, Any]:
    session: dict[str, Any] = json.loads(body)
    field = DIALECTS[dialect].fields.history
    history = session[field]
    if not isinstance(history, list):
        history = [{"role": "user", "content": history}]
    session[field] = [*history, *map(json.loads, replies)]
    bare = {name: _bare(value) if name in ("system", "tools", field) else value for name, value in session.items()}
    has_marks = bare != session or any(mark in session for mark in _MARKS)
    bare = {name: value for name, value in bare.items() if name not in (*_MARKS, *_OURS, "stream", "stream_options")}
    return bare if has_marks else {**bare, "cache_marks": False}


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _bare(each) if name in _HOLDERS else each for name, each in value.items() if name not in _MARKS}


# --- what is left out ---

REDACTED = "[redacted]"
_SHORTEST = 8
"""Characters of a credential that is looked for."""

_QUIET = re2.Options()
_QUIET.log_errors = False  # what is wrong with a pattern is said in the error
_Row = tuple[tuple[str, ...], Any]


class Redaction:
    """Leaves out what a table says: patterns by paths. Raises ValueError for a pattern that is none."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._rows: list[_Row] = []
        for path, pattern in table.items():
            names = tuple(name for name in path.removeprefix("$").split(".") if name)
            try:
                self._rows.append((names, re2.compile(pattern, _QUIET) if pattern else None))
            except re2.error as error:
                reason = error.args[0] if error.args else ""
                reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
                raise ValueError(f"{path}: {pattern!r} is not a valid RE2 pattern ({reason}); correct it") from error

    def applied(self, session: Mapping[str, Any], credential: str) -> bytes:
        raw = as_json(_redacted(session, self._rows) if self._rows else session)
        for form in forms_of(credential):
            raw = raw.replace(form, REDACTED.encode())
        return raw


def forms_of(credential: str) -> Iterator[bytes]:
    """The keys of a credential, plain, and in the encodings in which a text may hold them."""
    for key in credential.split("\n"):
        raw = key.encode("utf-8", "surrogateescape")
        if len(raw) >= _SHORTEST:
            yield raw
            yield as_json(key)[1:-1]
            yield from (encode(raw).rstrip(b"=") for encode in (b64encode, urlsafe_b64encode))
            # inside of a longer text it begins at any of three places, and shares its outer characters with neighbours
            yield from (
                encode(bytes(before) + raw)[before + bool(before) : (before + len(raw)) * 4 // 3]
                for encode in (b64encode, urlsafe_b64encode)
                for before in range(3)
            )
            yield from (raw.hex().encode(), raw.hex().upper().encode())
            yield from (quote(raw, safe=safe).encode() for safe in ("", "/"))


def _redacted(value: Any, rows: Sequence[_Row]) -> Any:
    here = [pattern for names, pattern in rows if not names]
    if isinstance(value, dict):
        return {name: _redacted(each, _under(name, rows)) for name, each in value.items()} if rows else value
    if isinstance(value, list):
        return [_redacted(each, _under(str(at), rows)) for at, each in enumerate(value)] if rows else value
    if None in here:
        return REDACTED
    if isinstance(value, str):
        for pattern in here:
            value = pattern.sub(REDACTED, value)
    return value


def _under(name: str, rows: Sequence[_Row]) -> Sequence[_Row]:
    """The rows that count below a field: those that cover all of it, and those whose path goes on through it."""
    return [(names[1:], pattern) for names, pattern in rows if not names or names[0] in (name, "*")]


# --- the recorder ---

_EVERY = 30.0
"""Seconds from one time that all is written to the next."""
_HELD = 64 * 2**20
"""Bytes that wait to be written; beyond it they are written at once, and beyond twice as much not at all."""
_MOST_BRANCHES = 100
"""Recordings of a conversation that begin alike; further branches are not recorded, and counted."""
_CLOSING_SECONDS = 5.0


@dataclass(slots=True)
class Recording:
    file: Path
    digests: tuple[bytes, ...]
    dialect: str = ""
    body: bytes = b""
    """Empty once it is written."""
    reply: bytes = b""
    credential: str = field(default="", repr=False)
    has_replies: bool = False
    """True where the body holds any: without one it is no session."""
    is_deleted: bool = False
    moments: Moments = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.body) + len(self.reply)


class Recorder:
    def __init__(
        self,
        recordings: Recordings,
        redaction: Redaction,
        settings: Settings,
        access: StoreAccess,
        memory: ArchiveMemory,
    ) -> None:
        self._recordings, self._redaction, self._settings, self._memory = recordings, redaction, settings, memory
        self._telemetry, self._secret, self._clock = access.telemetry, access.secret, access.clock
        self._waiting: dict[Path, Recording] = {}
        self._held = 0
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def passed(self, key: Key, client_request: ClientRequest, parsed: ParsedRequest, came: float) -> None:
        """The reply to a request begins. `came`: when the request did."""
        wanted = client_request.options.record
        if wanted is False or not (wanted or self._is_sampled(key)):
            return
        if self._held > 2 * _HELD:
            self._telemetry.metrics.store_trouble("recording_full")
            return
        digests = tuple(message.digest for message in parsed.conversation.messages)
        beginning = parsed.conversation.end_anchor(0)
        entry = self._memory.of(key)
        branches = entry.recordings.setdefault((client_request.sender.owner, beginning), [])
        recording = next((each for each in branches if digests[: len(each.digests)] == each.digests), None)
        if recording is None and len(branches) >= _MOST_BRANCHES:
            self._telemetry.metrics.store_trouble("recording_full")
            return
        if recording is None:
            place = (key.tenant, key.conversation, client_request.sender.owner, beginning, len(branches))
            recording = Recording(self._recordings.place(*place), digests)
            branches.append(recording)
            self._memory.put(key, entry)
        recording.digests, recording.dialect = digests, client_request.dialect
        newest = parsed.conversation.steps - 1
        recording.moments = {at: each for at, each in recording.moments.items() if at < newest}
        recording.moments[newest] = RequestMoments(came, self._clock())
        recording.credential, recording.has_replies = client_request.sender.credential, parsed.conversation.steps > 1
        self._hold(recording, client_request.body, b"")

    def replied(
        self, key: Key, client_request: ClientRequest, parsed: ParsedRequest, reply: HeldReply, came: float
    ) -> None:
        digests = tuple(message.digest for message in parsed.conversation.messages)
        newest = parsed.conversation.steps - 1
        beginning = parsed.conversation.end_anchor(0)
        for recording in self._memory.of(key).recordings.get((client_request.sender.owner, beginning), ()):
            row = recording.moments.get(newest)
            if row is not None and row.came == came:  # else it was sent again meanwhile
                recording.moments = {**recording.moments, newest: row._replace(ended=self._clock())}
            if recording.digests == digests:
                self._hold(recording, client_request.body, reply.content)

    async def delete(self, tenant: str, conversation: str | None = None, owner: str | None = None) -> int:
        """Delete recordings of a tenant, a conversation, a sender. How many there were, written or not."""
        self._memory.forget(tenant, conversation)
        async with self._lock:
            waiting = len(self._waiting)
            self._waiting = {file: each for file, each in self._waiting.items() if not each.is_deleted}
            with suppress(OSError):
                return await asyncio.to_thread(self._recordings.delete, tenant, conversation, owner)
        return waiting - len(self._waiting)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self._write_waiting()

    def _is_sampled(self, key: Key) -> bool:
        """By the name of the conversation: for its whole life, at every replica."""
        name = f"record\0{key.tenant}\0{key.conversation}".encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._secret, name, "sha256")
        return int.from_bytes(digest[:8], "big") < self._settings.record_share * 2**64

    def _hold(self, recording: Recording, body: bytes, reply: bytes) -> None:
        self._held += len(body) + len(reply) - recording.size
        recording.body, recording.reply = body, reply
        self._waiting[recording.file] = recording
        if self._held > _HELD:
            self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_now_and_then())

    async def _write_now_and_then(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY):
                    await self._wake.wait()
            self._wake.clear()
            await self._write_waiting()
            with suppress(OSError):
                limit = self._settings.record_limit
                gone = await asyncio.to_thread(self._recordings.trim, limit, ttl_of(self._settings.store))
                if gone:
                    self._telemetry.log.warning("recordings_trimmed", files=gone, limit=limit)

    async def _write_waiting(self) -> None:
        while self._waiting:
            async with self._lock:
                if not self._waiting:
                    return
                recording = self._waiting.pop(next(iter(self._waiting)))
                self._held -= recording.size
                body, reply, recording.body, recording.reply = recording.body, recording.reply, b"", b""
                if recording.is_deleted:
                    continue
                try:
                    earlier = await asyncio.to_thread(self._write, recording, body, reply)
                    recording.moments = {**earlier, **recording.moments}
                except Exception as error:  # one recording is no reason to stop all others
                    self._telemetry.metrics.store_trouble("recording")
                    self._telemetry.log.warning("recording_failed", error=type(error).__name__)
                if recording.is_deleted:  # meanwhile, by another worker
                    with suppress(OSError):
                        await asyncio.to_thread(recording.file.unlink, missing_ok=True)

    def _write(self, recording: Recording, body: bytes, reply: bytes) -> Moments:
        """Returns the times of the requests that this process has not seen, as far as earlier recordings have them."""
        dialect, moments, earlier = recording.dialect, recording.moments, dict[int, RequestMoments]()
        replies: Sequence[bytes] = DIALECTS[dialect].messages_in(reply) if reply else ()
        if not (replies or recording.has_replies):
            return earlier
        content = self._redaction.applied(session_of(dialect, body, replies), recording.credential)
        session = json.loads(content)
        starts = reply_starts(dialect, session)
        if any(at not in moments for at in range(len(starts))):
            for other in self._recordings.alike(recording.file):
                earlier = {**shared_moments(other, dialect, session, starts), **earlier}
        if fields := time_fields({**earlier, **moments}, len(starts)):
            content = content[:-1] + b"," + as_json(fields)[1:]
        self._recordings.write(recording.file, content)
        return earlier
