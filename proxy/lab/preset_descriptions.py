"""`narrows presets`: which presets there are, and what one of them does, in words.

Laws
  What is said of a policy is the first sentence of its module; what is said of its parameters follows from their types.
  An exception to the laws is always said, and so is whatever makes a preset of one's own differ from its base.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator
from pydantic_settings import SettingsConfigDict

from policies.model.windows import Size, Trigger, Window
from policies.presets import PRESETS, Preset
from proxy.config.errors import unknown
from proxy.config.presets import ALONE, Own, own_presets
from proxy.config.sources import PREFIX, Configured, loaded

MEANINGS: Mapping[str, tuple[str, str]] = {
    "over": ("tokens", "a text that has more is large"),
    "keep": ("turns", "the newest that stays as it is"),
    "keep_after": ("turns", "the same, once a summary stands"),
    "keep_writes": ("turns", "the same, of arguments that write files"),
    "keep_files": ("turns", "the same, of what may be edited next"),
    "keep_code": ("turns", "the same, of fenced code"),
    "done": ("turns", "the same, of work that is settled"),
    "when": ("", "from when on anything is done"),
    "matters": ("tokens", "what counts in an old output: so much of it stays, at least"),
    "fresh": ("", "what stays of an output when it is cut the first time, at most"),
    "fresh_files": ("", "whether what may be edited next is cut at once, too"),
    "share": ("", "what stays of a text"),
    "batch": ("tokens", "what has to go for a summary to be asked for, at least"),
    "words": ("tokens", "what people wrote that is carried along word for word, at most"),
    "generations": ("summaries", "made of the one before, until one is made of the originals again"),
    "long": ("tokens", "no summary is asked for while a person's newest message has more"),
    "system": ("", "whether the summary stands as system text"),
    "frame": ("", "what the summary stands between"),
    "most": ("characters", "the length of a digest, at most"),
    "source": ("characters", "what the model is shown of an output, at most"),
    "by_model": ("", "whether a model is asked for digests"),
}
"""What a number counts, and what each parameter means."""
_UNITS: Mapping[str, str] = {"chars": "characters", "share": "of the window", "window": "of the window"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a policy, in words; `was` is what the base says where that is something else."""

    name: str
    value: str
    means: str
    was: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"name": self.name, "value": self.value, "means": self.means, "base": self.was or None}


@dataclass(frozen=True, slots=True)
class Layer:
    """One policy of a preset: what it does, how, and whether the base has none of it."""

    name: str
    does: str
    parameters: tuple[Parameter, ...]
    added: bool = False

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        parameters = [parameter.as_json() for parameter in self.parameters]
        return {"policy": self.name, "does": self.does, "parameters": parameters, "not_in_base": self.added}


@dataclass(frozen=True, slots=True)
class Book:
    """A preset, in words. `base` is that of a preset of one's `own`, and `left_out` the policies only that one has."""

    name: str
    about: str
    layers: tuple[Layer, ...]
    exceptions: tuple[str, ...]
    writer: str
    own: bool = False
    base: str = ""
    left_out: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "about": self.about,
            "own": self.own,
            "base": self.base or None,
            "policies": [layer.as_json() for layer in self.layers],
            "left_out_of_base": list(self.left_out),
            "exceptions": list(self.exceptions),
            "writer": self.writer or None,
        }


class _Shelf(Configured):
    """Where presets of one's own are said."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, hide_input_in_errors=True)

    config: Path | None = None
    presets: Annotated[dict[str, Own], PlainValidator(own_presets)] = Field(default_factory=dict)


def presets_in(config: Path | None) -> Mapping[str, Own]:
    """One's own presets: those of this file, or of the environment. Raises ConfigurationError."""
    return loaded(_Shelf, ["--config", str(config)] if config else []).presets


def book(name: str, own: Mapping[str, Own]) -> Book:
    """A preset in words. Raises ValueError where there is none of this name."""
    known = {**PRESETS, **{each: found.preset for each, found in own.items()}}
    if name not in known:
        raise ValueError(unknown("preset", name, known))
    base = own[name].base if name in own else ""
    before = _parameters(known[base]) if base else {}
    layers = tuple(_layer(policy, before, bool(base)) for policy in _policies(known[name]))
    here = {layer.name for layer in layers}
    return Book(
        name,
        known[name].about,
        layers,
        tuple(_exceptions(known[name])),
        _writer(known[name]),
        name in own,
        base,
        tuple(policy for policy in before if policy not in here),
    )


def plan_state(own: Mapping[str, Own]) -> Sequence[Book]:
    """All presets, one's own last."""
    return [book(name, own) for name in (*PRESETS, *own)]


def does(policy: Any) -> str:
    """What a policy does: the first sentence of its module."""
    module = inspect.getmodule(policy)
    return " ".join((inspect.getdoc(module) or "").partition("\n\n")[0].split())


def _policies(preset: Preset) -> Iterator[partial[Any]]:
    return (policy for policy in preset.policies if isinstance(policy, partial))


def _parameters(preset: Preset) -> dict[str, dict[str, str]]:
    """The parameters of each policy and their values, in words."""
    return {policy.func.__name__: _values(policy) for policy in _policies(preset)}


def _values(policy: partial[Any]) -> dict[str, str]:
    signature = inspect.signature(policy.func).parameters.values()
    named = (each for each in signature if each.kind is each.KEYWORD_ONLY)
    return {each.name: in_words(policy.keywords.get(each.name, each.default), MEANINGS[each.name][0]) for each in named}


def _layer(policy: partial[Any], base: Mapping[str, Mapping[str, str]], has_base: bool) -> Layer:
    name = policy.func.__name__
    before = base.get(name, {})
    parameters = tuple(
        Parameter(each, value, MEANINGS[each][1], "" if before.get(each, value) == value else before[each])
        for each, value in _values(policy).items()
    )
    return Layer(name, does(policy.func), parameters, has_base and name not in base)


def in_words(value: Any, unit: str) -> str:
    """A value of a parameter; a number alone counts `unit`."""
    if value is None:
        return "never"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0%}"
    if isinstance(value, tuple):
        return " or ".join(f"from {_amounts(each, ' and ')} on" for each in value) or "always"
    if isinstance(value, (Size, Window)):
        return _amounts(value, " or ")
    return f"{value:,} {unit}" if isinstance(value, int) else str(value)


def _amounts(value: Size | Window | Trigger, between: str) -> str:
    """The counts of a table that are not 0, with what they count."""
    counts = [(_UNITS.get(each.name, each.name), getattr(value, each.name)) for each in fields(value)]
    said = [f"{n:.0%} {unit}" if isinstance(n, float) else f"{n:,} {unit}" for unit, n in counts if n]
    return between.join(said) or f"0 {ALONE.get(type(value), 'tokens')}"


def _exceptions(preset: Preset) -> Iterator[str]:
    if preset.exceptions.first_sight:
        yield "results are cut before the model has seen them whole (first_sight)"
    for text in preset.exceptions.system:
        yield f"a summary may stand for system text that is {text} (system)"


def _writer(preset: Preset) -> str:
    """Who writes what is asked for; empty where nothing is."""
    if not preset.summarizes and preset.digests is None:
        return ""
    writing = preset.writing
    named = [f"{model} at {provider}" if provider else model for provider, model in writing.models]
    said = [
        f"by {', '.join(named)}" if named else "by the model of the conversation",
        "unless `summarizers` names another",
    ]
    said += [f"{writing.tokens:,} tokens at most"] if writing.tokens else []
    said += ["told by a prompt of its own"] if writing.prompt else []
    return ", ".join(said)
