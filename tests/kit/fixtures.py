"""What the end-to-end tests of the proxy share."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from policies.presets import PRESETS, Preset
from proxy.app import App
from proxy.memory import open_store
from tests.kit.apis import APIS, Api
from tests.kit.histories import EAGER
from tests.kit.recalling import KEEPING, Client, client_of
from tests.kit.speaking import Speaker, speaking
from tests.kit.stage import Stage, staged
from tests.kit.summarizers import Make, Serve, making, serving


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """The strict provider, ready for a Narrows with the eager preset."""
    monkeypatch.setitem(PRESETS, "eager", Preset(EAGER))
    async with staged(tmp_path / "narrows.db") as stage:
        yield stage


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is waited for: where a test is about what the store knows, a busy machine is no fault of it."""
    monkeypatch.setattr("proxy.memory.cached._PATIENCE", 5.0)
    monkeypatch.setattr("proxy.addons.limits.limits.PATIENCE", 5.0)
    monkeypatch.setattr("proxy.memory.opening.open_store", partial(open_store, patience=5.0))


@pytest.fixture
async def app(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> App:
    """A Narrows that hides outputs as soon as it may, and keeps for a while what was recalled."""
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    return await stage.start(preset="keeping")


@pytest.fixture
async def client(app: App) -> AsyncIterator[Client]:
    """The official SDK before that Narrows."""
    async with client_of(app.base_url) as client:
        yield client


@pytest.fixture(params=APIS.values(), ids=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    """Each API, one after the other."""
    api: Api = request.param
    return api


@pytest.fixture
async def speaker(api: Api, app: App) -> AsyncIterator[Speaker]:
    """Its official SDK before that Narrows."""
    async with speaking(api, app.base_url) as speaker:
        yield speaker


@pytest.fixture
async def stack(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncExitStack]:
    """What tests of summarisers started, and the variable that holds a key of ours."""
    monkeypatch.setenv("KEY_OF_OURS", "ours")
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def serve(stack: AsyncExitStack) -> Serve:
    """Starts upstreams for summarisers."""
    return serving(stack)


@pytest.fixture
def make(stack: AsyncExitStack) -> Make:
    """Makes summarisers."""
    return making(stack)
