"""Which files of proxy/ hold code that runs for one chat request."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tests.kit.paths import ROOT

_PROXY = str(ROOT / "proxy") + "/"


@contextmanager
def files_on_the_path(behind: bool = False) -> Iterator[set[str]]:
    """Collect, relative to proxy/, the files of all functions that are called in the task that serves a request, from
    its bytes in to its bytes out; with `behind` also of what runs behind it, in other tasks and threads. Neither counts
    the lab: the simulated provider runs in the same process."""
    files: set[str] = set()
    serving: set[asyncio.Task[object]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(_PROXY) or name.startswith(_PROXY + "lab/"):
            return
        if behind:
            files.add(name.removeprefix(_PROXY))
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            return
        if task is not None and name.endswith("kernel/handlers.py") and frame.f_code.co_name == "__call__":
            serving.add(task)
        if task in serving:
            files.add(name.removeprefix(_PROXY))

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None takes it away
