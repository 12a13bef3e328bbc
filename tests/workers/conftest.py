"""Workers before the strict provider."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.serving import Serving
from tests.kit.stage import Stage, staged


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path / "one.db") as stage:
        yield stage


@pytest.fixture
async def serving(stage: Stage, tmp_path: Path) -> AsyncIterator[Serving]:
    serving = Serving(stage, tmp_path)
    try:
        await serving.up()
        yield serving
    finally:
        serving.process.kill()
        serving.process.wait()
        assert serving.process.stdout is not None
        serving.process.stdout.close()
