"""What of a preset can be known to be impossible before any request has come.

Laws
  Only what has one unit is compared: how many turns so many tokens are, nobody knows beforehand.
  A refusal says what to change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from policies.model.windows import Size, Trigger, Window
from proxy.config.errors import Path

Fault = tuple[Path, str]
"""Which parameter cannot work, and what to say of it."""

_LEAST = 100
"""Characters of a digest that says anything, beside the marks of what it leaves out."""


def impossible(parameters: Mapping[str, Any]) -> Iterator[Fault]:
    """What cannot work in the parameters of one policy."""
    for check in _CHECKS:
        yield from check(parameters)


def repeated(names: Sequence[str]) -> tuple[int, str] | None:
    """The first policy that is there twice: which one, and what to say of it."""
    for at, name in enumerate(names):
        if (first := names.index(name)) < at:
            return at, f"{name} is there already, as policies.{first}; a preset has each policy once: make them one"
    return None


def _endless(parameters: Mapping[str, Any]) -> Iterator[Fault]:
    """Windows that nothing ever leaves, and texts of which all stays."""
    if parameters.get("share", 0.0) >= 1:
        yield ("share",), "all of a text would stay as it is; give a lower share"
    for name, value in parameters.items():
        if isinstance(value, Window) and value.share >= 1:
            yield (name,), "it holds the whole window of the model, so nothing would ever leave it; give a lower share"


def _wider_later(parameters: Mapping[str, Any]) -> Iterator[Fault]:
    """A window that is wider once a summary stands."""
    before, after = (_amounts(parameters.get(name)) for name in ("keep", "keep_after"))
    if all(after.get(unit, -1) >= count for unit, count in before.items()):
        for unit in [unit for unit, count in before.items() if after[unit] > count][:1]:
            yield ("keep_after",), f"{after[unit]:g} {unit} are more than `keep` says ({before[unit]:g}); lower it"


def _never_due(parameters: Mapping[str, Any]) -> Iterator[Fault]:
    """Triggers that come true while the window holds all there is."""
    kept = _amounts(parameters.get("keep"))
    for at, trigger in enumerate(parameters.get("when", ())):
        asked = _amounts(trigger)
        if asked and all(count <= kept.get(unit, -1) for unit, count in asked.items()):
            limits = " and ".join(f"{kept[unit]:g} {unit}" for unit in asked)
            yield ("when", at), f"`keep` holds {limits}, all there is when this comes true; raise it, or lower `keep`"


def _no_shorter(parameters: Mapping[str, Any]) -> Iterator[Fault]:
    """Digests that say nothing, or are no shorter than what they stand for, or than what they are made from."""
    most, source, over = (parameters.get(name) for name in ("most", "source", "over"))
    if most is None or source is None:
        return
    if most < _LEAST:
        yield ("most",), f"a digest of {most} characters says nothing; give {_LEAST} at least"
    if source < most:
        yield ("source",), f"a digest of {most} characters is not made from {source}; raise it, or lower `most`"
    # text of so many bytes has no more characters
    sizes = [("characters", over.chars), ("bytes", over.bytes)] if isinstance(over, Size) else []
    for unit, size in sizes:
        if 0 < size <= most:
            yield ("most",), f"{most} characters are no less than `over` ({size} {unit}); lower it, or raise `over`"


_CHECKS: Sequence[Callable[[Mapping[str, Any]], Iterator[Fault]]] = (_endless, _wider_later, _never_due, _no_shorter)


def _amounts(value: Any) -> dict[str, float]:
    """Units and counts of a window or a trigger. A share of the model's window has one name in both."""
    if isinstance(value, int):
        return {"turns": value}
    names = [field.name for field in fields(value)] if isinstance(value, (Window, Trigger)) else []
    counts = {{"share": "window"}.get(name, name): getattr(value, name) for name in names}
    return {unit: count for unit, count in counts.items() if count}
