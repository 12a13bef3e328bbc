"""The files of recordings: written whole, for their owner's eyes alone, sealed where encryption is on; deleted by
conversation, by tenant and by who sent it, and by size and age.

Laws
  No file stands there half written. A folder is its tenant's, a name says which conversation, who sent it, and how it
  began, each as a digest.
  Only files with the names of recordings are ever deleted.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from policies.dialects import DIALECTS
from proxy.config.keyring import SEALED, Keyring, SealedError, keyring_of

_NAME = re.compile(r"([0-9a-f]{24})\.([0-9a-f]{12})\.[0-9a-f]{8}-[0-9]{1,4}\.(json|sealed|[0-9]+)")
"""With a number at the end it is half written, maybe by a process that died of it."""
_FOLDER = re.compile(r"[0-9a-f]{16}")
_PLACE = b"recording"
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
    bare = {name: value for name, value in bare.items() if name not in (*_MARKS, "stream", "stream_options")}
    return bare if has_marks else {**bare, "cache_marks": False}


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _bare(each) if name in _HOLDERS else each for name, each in value.items() if name not in _MARKS}
