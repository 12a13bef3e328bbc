"""What others have deleted is repeated for as long as a process runs, whatever fails meanwhile."""

import asyncio
from pathlib import Path

import pytest

from proxy.memory import forgetting
from proxy.memory.forgetting import Scope, announce, follow
from tests.addons.pages.test_conversations import opened


async def test_x6_an_error_does_not_end_the_following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "_POLL", 0.01)
    repeated, failures, is_done = list[Scope](), list[Exception](), asyncio.Event()

    async def repeat(scope: Scope) -> None:
        repeated.append(scope)
        if len(repeated) == 1:
            raise ValueError("a row that cannot be read")
        is_done.set()

    async with opened(f"sqlite:///{tmp_path}/store.db") as store:
        following = asyncio.create_task(follow(store, repeat, set(), failures.append))
        await asyncio.sleep(0.1)
        await announce(store, Scope("team", "chat"), 1.0, "one")
        async with asyncio.timeout(5):
            await is_done.wait()
        following.cancel()
    assert repeated == [Scope("team", "chat")] * 2
    assert [type(each) for each in failures] == [ValueError]
