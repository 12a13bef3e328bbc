"""The stores behind the pages."""

from uuid import uuid4

import pytest

from tests.kit.stage import Stage


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, stage: Stage) -> str:
    """A real store of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{stage.path}"
    return f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}"
