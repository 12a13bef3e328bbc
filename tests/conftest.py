"""The fixtures of all tests, and the examples of properties: the same in every run of the same source."""

import gc
import os

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

pytest_plugins = ["tests.kit.running", "tests.kit.fixtures", "tests.kit.redis_servers"]


def pytest_configure(config: pytest.Config) -> None:
    """Examples follow from the source of their property alone, so that no run fails by chance. `--hypothesis-seed=N`
    tries others. No example has a deadline, which a busy machine would miss. Garbage is looked for less often: there
    are few cycles, and much that stays."""
    gc.set_threshold(10_000, 10, 10)
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
    if config.getoption("--hypothesis-seed", None) is None:
        settings.register_profile("repeatable", settings(), derandomize=True, database=None, print_blob=True)
        settings.load_profile("repeatable")
        # else examples hold constants of all modules that are loaded, which depends on the tests before
        providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(autouse=True)
def _upstreams_stand_for_remote_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves loopback, and few of them are about servers there."""
    monkeypatch.setattr("proxy.config.upstreams.is_local", lambda url: False)


_LONGEST = ("workers", "lab", "console", "kernel")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait for sockets, for processes and for what must not come."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folders whose files take longest come first, so that no worker is left alone with one of them."""
    items.sort(key=lambda item: item.path.parent.name not in _LONGEST)


def pytest_collection_finish() -> None:
    """What is there now stays: modules and thousands of tests are not searched again and again."""
    gc.collect()
    gc.freeze()
