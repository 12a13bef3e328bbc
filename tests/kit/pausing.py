"""Breakers that open for as long as a test wants."""

from dataclasses import replace

import pytest

from proxy.breaker import BREAKERS


def pause_breakers(monkeypatch: pytest.MonkeyPatch, name: str, seconds: float, lasting: float = 0.0) -> None:
    """What breaks is left alone for so many seconds: all breakers whose name ends like this."""
    changed = {
        each: replace(options, pause=seconds, lasting=lasting)
        for each, options in BREAKERS.items()
        if each.endswith(name)
    }
    monkeypatch.setattr("proxy.breaker.BREAKERS", {**BREAKERS, **changed})
