"""The log: lines that a thread formats and writes, in their order, and bounded in number."""

import io
import json
import os
import select
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock, Thread
from time import time
from typing import Any, TextIO

import structlog

Line = MutableMapping[str, Any]
_BATCH_SECONDS = 0.1
_MOST_LINES = 10_000
_FULL_SECONDS = 0.02
"""How long anybody but the thread waits for a log that is full."""
_CLOSING_SECONDS = 1.0
_URGENT = frozenset({"warning", "error", "critical"})
"""Lines of these levels, and what was logged before them, do not wait for others."""


class LogWriter:
    """Formats and writes lines, once started in a thread, for as long as somebody reads them: a closed log stops no
    request, and neither does a slow one."""

    def __init__(self, format_: str, stream: TextIO) -> None:
        is_json = format_ == "json" or (format_ == "auto" and not stream.isatty())
        console = structlog.dev.ConsoleRenderer(colors=stream.isatty())
        encode = json.JSONEncoder(default=repr).encode
        self._render: Callable[[Line], str] = encode if is_json else lambda line: _for_people(line, console)
        self._stream = stream
        self._lines: deque[Line] = deque()
        self._lost = 0
        self._writing = Lock()
        self._has_lines, self._has_trouble = Event(), Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = Thread(target=self._write_in_batches, name="log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._has_trouble.set()
            self._has_lines.set()
            thread.join(_CLOSING_SECONDS)
        self.flush()

    def put(self, line: Line) -> None:
        if len(self._lines) >= _MOST_LINES:
            self._lost += 1
            return
        self._lines.append(line)
        if line["level"] in _URGENT:
            self._has_trouble.set()
        if self._thread is None:
            self.flush()
        elif not self._has_lines.is_set():
            self._has_lines.set()

    debug = info = warning = error = critical = put

    def flush(self) -> None:
        """Write what waits, unless the thread is stuck in writing it."""
        if not self._writing.acquire(timeout=_FULL_SECONDS):
            return
        try:
            text = "".join(f"{self._render(_readable(self._lines.popleft()))}\n" for _ in range(len(self._lines)))
            lost, self._lost = self._lost, 0
            if lost:
                line = {"lines": lost, "event": "log_lines_lost", "level": "warning", "timestamp": time()}
                text += f"{self._render(_readable(line))}\n"
            with suppress(ValueError, OSError):
                self._write(text)
        finally:
            self._writing.release()

    def _write(self, text: str) -> None:
        """Write to the file itself: who is stuck in a buffer of Python's keeps the process from ending. Only the thread
        waits for a reader of a pipe that is full."""
        if not hasattr(select, "poll") or not (file := _file(self._stream)):
            self._stream.write(text)
            self._stream.flush()
            return
        readiness = select.poll()
        readiness.register(file, select.POLLOUT)
        remaining = text.encode(errors="backslashreplace")
        while remaining and (self._thread is not None or readiness.poll(_FULL_SECONDS * 1000)):
            remaining = remaining[os.write(file, remaining[: select.PIPE_BUF]) :]

    def _write_in_batches(self) -> None:
        while self._thread is not None:
            self._has_lines.wait()
            self._has_trouble.wait(_BATCH_SECONDS)
            self._has_trouble.clear()
            self._has_lines.clear()
            with suppress(Exception):  # one line that cannot be written is not to be the last
                self.flush()


def _for_people(line: Line, console: structlog.dev.ConsoleRenderer) -> str:
    """A request in words; everything else as structlog shows it."""
    return in_words(line) if line["event"] == "request" and "route" in line else str(console(None, "", line))


def _file(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return None


def logger(level: str, writer: LogWriter) -> structlog.typing.FilteringBoundLogger:
    bound: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        writer,
        processors=[structlog.processors.add_log_level, _without_text, _stamped],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    return bound


def _stamped(_: Any, __: str, event: Line) -> tuple[tuple[Line], dict[str, Any]]:
    """The line as the writer takes it: everything else is done where it is written."""
    event["timestamp"] = time()
    return (event,), {}


def _without_text(_: Any, __: str, event: Line) -> Line:
    """Log the name of an exception and where it was raised, innermost first: its text may quote a body."""
    exc_info = event.pop("exc_info", None)
    error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
    if exc_info and error is not None:
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        event["error"] = type(error).__name__
        event["at"] = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return event


def _readable(line: Line) -> Line:
    """The fields of a line without empty ones, times rounded; no value begins a line or moves a cursor."""
    line["timestamp"] = datetime.fromtimestamp(line["timestamp"], UTC).isoformat().replace("+00:00", "Z")
    for key, value in list(line.items()):
        if value == "" or value is None:
            del line[key]
        elif isinstance(value, float):
            line[key] = round(value, 6 if key in DOLLARS else 3)
        elif isinstance(value, str) and not value.isprintable():
            line[key] = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return line


# --- the line of a request, for people at a terminal ---

DOLLARS = frozenset({"baseline", "dollars", "paid", "saved"})
_LEAST = 0.0005
"""Dollars that are none on a terminal."""
_DIGEST = 32


def in_words(line: Mapping[str, Any]) -> str:
    """A line for people, from its fields: `chat gpt-5.4  27.2k -> 11.0k  extended  $0.014 less  24 ms  conv b026`."""
    return "  ".join(_words(line))


def _words(line: Mapping[str, Any]) -> Iterator[str]:
    is_chat = line["route"] == "chat"
    yield f"{line['route']} {line.get('model', '' if is_chat else line['method'])}".rstrip()
    if line.get("before") or line.get("after"):
        tokens = (line[name] for name in ("before", "after"))
        yield " -> ".join(dict.fromkeys(str(each) if each < 1_000 else f"{each / 1_000:.1f}k" for each in tokens))
    if "prefix" in line:
        yield line["prefix"]
    if line.get("mode") == "observed":  # the tokens behind the arrow are those that would have been sent
        yield line["mode"]
    if "paid" in line:
        yield _money(line["paid"], line["saved"])
    if line.get("rounds"):
        yield f"{line['rounds']} recall{'' if line['rounds'] == 1 else 's'}"
    yield f"{line['added_ms' if is_chat else 'ms']:.0f} ms"
    if line.get("conversation"):
        name = line["conversation"]
        yield f"conv {name[:4] if len(name) == _DIGEST else name}"
    if line["status"] // 100 != 2:
        yield f"status {line['status']}"
    if "trouble" in line:
        yield line["trouble"]


def _money(paid: float, saved: float) -> str:
    if abs(saved) < _LEAST:
        return f"${paid:.3f}"
    return f"${abs(saved):.3f} {'less' if saved > 0 else 'more'}"
