"""The scene of each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.addons.warm.scene import Clock, Scene
from tests.kit.stage import staged


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock = Clock()
    async with staged(tmp_path / "narrows.db", clock=clock) as stage:
        yield Scene(stage, clock)
