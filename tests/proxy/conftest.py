"""What the end-to-end tests of the proxy share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from policies.presets import PRESETS
from tests.histories import EAGER
from tests.proxy.stage import Stage, staged


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """The strict provider, ready for a Narrows with the eager preset."""
    monkeypatch.setitem(PRESETS, "eager", EAGER)
    async with staged(tmp_path / "narrows.db") as made:
        yield made
