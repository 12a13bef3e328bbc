"""How many files a newcomer reads to follow one chat request, bytes in to bytes out, and how often the next one is
another.

Nothing is left out but the lab, whose simulated provider runs in the same process. `python -m tests.kernel.test_path`
prints rooms and files in the order in which their functions are first called; the file may be run in another tree, too.
"""

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path, PurePath
from types import CodeType, FrameType

import aiohttp
import pytest

import proxy
from proxy.app import App
from proxy.config import Settings
from proxy.lab import sessions
from tests.kit.rolling import office_of
from tests.kit.stage import staged
from tests.kit.upstream import CHAT, ScriptedUpstream, completion, json_answer, says

_ROOT = f"{Path(proxy.__file__).parents[1]}/"
_ROOMS = (f"{_ROOT}proxy/", f"{_ROOT}policies/")
_LAB = f"{_ROOT}proxy/lab/"
_SERVER = "RequestHandler._handle_request"
"""The coroutine of the task in which aiohttp has a request served."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The files whose functions are called, by the first call of each function."""

    steps: list[str] = field(default_factory=list)

    @property
    def proxy(self) -> list[str]:
        """Those of proxy/."""
        return [file for file in self.steps if file.startswith("proxy/")]

    def changes(self) -> tuple[int, int]:
        """How often the next function of proxy/ stands in another room (a folder), and in another file."""
        pairs = list(pairwise(map(PurePath, self.proxy)))
        return sum(one.parent != other.parent for one, other in pairs), sum(one != other for one, other in pairs)

    def __str__(self) -> str:
        stays = groupby(map(PurePath, self.steps), lambda file: file.parent)
        return "\n".join(f"{room}: {' '.join(file.stem for file, _ in groupby(files))}" for room, files in stays)


@contextmanager
def _walking(behind: bool = False) -> Iterator[Walk]:
    """Follow the task that serves a request, from its bytes in to its bytes out; with `behind` also what runs behind
    it, in other tasks and threads."""
    walk, seen = Walk(), set[CodeType]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        name = code.co_filename
        if event != "call" or code in seen or not name.startswith(_ROOMS) or name.startswith(_LAB):
            return
        if behind or _is_serving():
            seen.add(code)
            walk.steps.append(name.removeprefix(_ROOT))

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None takes it away


def _is_serving() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return False
    return task is not None and getattr(task.get_coro(), "__qualname__", "") == _SERVER


async def bare(folder: Path) -> Walk:
    """The third request of a session that is neither compacted nor summed up."""
    recorded = sessions.load("long_day")
    ends = [i for i, message in enumerate(recorded["messages"]) if message["role"] == "assistant"]
    async with (
        ScriptedUpstream(says(json_answer(completion()))) as upstream,
        await App.start(_settings(upstream.url, folder)) as app,
        aiohttp.ClientSession() as client,
    ):
        for end in ends[:3]:
            body = json.dumps({**recorded, "messages": recorded["messages"][:end]})
            with _walking() as walk:
                async with client.post(app.base_url + CHAT, data=body) as reply:
                    assert reply.status == 200
                    await reply.read()
    return walk


def _settings(upstream: str, folder: Path) -> Settings:
    return Settings(
        upstream=upstream,
        port=0,
        store=f"sqlite:///{folder / 'bare.db'}",
        log_level="error",
        recall="never",
        preset="structural",
        planning_timeout=600,
    )


async def full(folder: Path) -> Walk:
    """A summary is written, stored and adopted, what it stands for is recalled, and every text is stored for people."""
    from tests.summaries.test_rolling import SESSION, recalling, refs_named, summary_of

    with pytest.MonkeyPatch.context() as patch:
        async with staged(folder / "full.db") as stage, office_of(stage, patch) as office:
            desk = await office.desk(preset="busy", originals=True, artifacts=True, history=True)
            with _walking(behind=True) as walk:
                grown = await office.adopted(desk, SESSION)
                (ref, *_) = refs_named(summary_of(grown[-1]))
                office.scribe.agent = recalling(ref)
                await desk.ask(SESSION[len(grown)], stream=True)
                await asyncio.sleep(0.2)  # what is written behind it
            await stage.stack.aclose()
    assert {"proxy/addons/archive", "proxy/summaries"} <= {file.rpartition("/")[0] for file in walk.steps}
    return walk


def figures(bare: Walk, full: Walk) -> list[int]:
    """Files of proxy/ bare, and with everything; files with policies/ bare; changes of room and of file."""
    return [len({*bare.proxy}), len({*full.proxy}), len({*bare.steps}), *bare.changes()]


def test_a_chat_request_can_be_followed_through_few_files() -> None:
    from tests.kit.house import Tree
    from tests.limits import LIMITS, PATH

    figures = Tree().path_figures()
    assert [*figures] == [*PATH]
    above = {name: figure for name, figure in figures.items() if not 0 < figure <= LIMITS[name].value}
    assert not above, "`python -m tests.kernel.test_path` prints the way"


async def _walks() -> tuple[Walk, Walk]:
    with tempfile.TemporaryDirectory() as folder:
        return await bare(Path(folder)), await full(Path(folder))


if __name__ == "__main__":
    _bare, _full = asyncio.run(_walks())
    print(json.dumps(figures(_bare, _full)) if sys.argv[1:] == ["--json"] else _bare)
