"""Which files of proxy/ hold code that runs for one chat request."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tests.kit.paths import ROOT

_PROXY = str(ROOT / "proxy") + "/"


@contextmanager
def files_on_the_path() -> Iterator[set[str]]:
    """Collect, relative to proxy/, the files of all functions that are called in the task that serves a request, from
    its bytes in to its bytes out: what runs behind the request is not on its path."""
    files: set[str] = set()
    serving: set[asyncio.Task[object]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(_PROXY):
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            return
        if task is not None and name.endswith("gateway/handlers.py") and frame.f_code.co_name == "__call__":
            serving.add(task)
        if task in serving:
            files.add(name.removeprefix(_PROXY))

    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
