"""`narrows presets`: which presets there are, and what one of them does, in words.

Laws
  What a policy does is the first sentence of its module; its parameters are described by their fields.
  Exceptions to the laws are always listed, and so are the differences between a preset of one's own and its base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field, PlainValidator
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from policies.context import Aim
from policies.model.parameters import Parameter, Trigger, amounts, parameters_of
from policies.presets import PRESETS, SMALL_WINDOW, Preset
from proxy.config.errors import unknown
from proxy.config.presets import CustomPreset, custom_presets
from proxy.config.sources import Configured, loaded
from proxy.config.units import duration
from proxy.console.arguments import AsJson, Config, offers
from proxy.console.output import as_json as values_of
from proxy.console.output import console, print_json, print_last_line, printable, refusing

_LAST_LINE = (
    """What each costs and leaves in sight: policies/README.md. `narrows presets NAME` says what one of them does."""
)

FOR_WHOM: Mapping[str, str] = {
    "coding-agent": "agents with tools, where no model may ever be asked for a summary",
    "adaptive": "the default, for nearly everybody: agents, and chats that grow long",
    "gentle": "agents whose own prose and old turns have to stay whole",
    "eager": "long runs of agents that can read files again: cheaper, and hides more",
    "lossless": "where nothing may be hidden: only repetition goes",
    "steady": "agents whose prompts have to stay as they were sent: only new outputs become shorter",
    "rolling": "very long runs where a summary of old turns is enough; asks a model",
    "chat": "chats of people, kept short at any price; not for agents; asks a model often",
    "agent-summary": "frameworks that expect a summary in <agent_summary> tags from 120,000 tokens on",
    "structural": "agents that read again what they need: outputs become pointers; asks no model",
    "tool-digest": "agents with large outputs of which a short digest is enough; asks a model often",
    "harness": "long runs that have to stay within half of the window; asks a model",
    "deep": "runs that fill a large window: it does nothing before 60 % of it",
}


@dataclass(frozen=True, slots=True)
class ParameterDescription:
    """One parameter of a policy, in words; `base` is the value in the base preset where that is another one."""

    name: str
    value: str
    means: str
    base: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """One policy of a preset. `not_in_base`: the base preset lacks it."""

    policy: str
    does: str
    parameters: tuple[ParameterDescription, ...]
    not_in_base: bool = False


@dataclass(frozen=True, slots=True)
class PresetDescription:
    """A preset, in words; as a dict it is what `--json` prints. `for_whom` is empty of a preset of one's `own`, which
    may start from a `base`: `base_aim` is the base's aim where it differs, and `left_out_of_base` names the policies
    that only the base has. `sight`: the share of actions that may need something out of sight; 0 where windows are as
    wide as the policies say."""

    name: str
    about: str
    for_whom: str
    own: bool
    base: str | None
    policies: tuple[PolicyDescription, ...]
    left_out_of_base: tuple[str, ...]
    exceptions: tuple[str, ...]
    aim: str
    base_aim: str | None
    sight: float
    writer: str | None


class _PresetSettings(Configured):
    config: Path | None = None
    presets: Annotated[dict[str, CustomPreset], PlainValidator(custom_presets)] = Field(default_factory=dict)


def presets_in(config: Path | None) -> Mapping[str, CustomPreset]:
    """The presets of one's own, in this file or in the environment. Raises ConfigurationError."""
    return loaded(_PresetSettings, {"config": config} if config else {}).presets


def describe(name: str, own: Mapping[str, CustomPreset]) -> PresetDescription:
    """A preset in words. Raises ValueError where there is none of this name."""
    presets = {**PRESETS, **{each: custom.preset for each, custom in own.items()}}
    if name not in presets:
        raise ValueError(unknown("preset", name, presets))
    preset, base = presets[name], own[name].base if name in own else ""
    in_base = {policy.name: policy for policy in presets[base].configured} if base else {}
    here = {policy.name for policy in preset.configured}
    policies = []
    for policy in preset.configured:
        parameters = []
        for each in parameters_of(policy):
            value, before = (
                in_words(getattr(of, each.name), each) for of in (policy, in_base.get(policy.name, policy))
            )
            parameters.append(ParameterDescription(each.name, value, each.meaning, before if before != value else None))
        not_in_base = bool(base) and policy.name not in in_base
        policies.append(PolicyDescription(policy.name, policy.summary, tuple(parameters), not_in_base))
    exceptions = [f"a summary may stand for system text that is {text} (system)" for text in preset.exceptions.system]
    if preset.exceptions.first_sight:
        exceptions = ["results are cut before the model has seen them whole (first_sight)", *exceptions]
    return PresetDescription(
        name=name,
        about=preset.about,
        for_whom=FOR_WHOM.get(name, ""),
        own=name in own,
        base=base or None,
        policies=tuple(policies),
        left_out_of_base=tuple(policy for policy in in_base if policy not in here),
        exceptions=tuple(exceptions),
        aim=aim_of(preset),
        base_aim=aim_of(presets[base]) if base and aim_of(presets[base]) != aim_of(preset) else None,
        sight=preset.sight,
        writer=_writer(preset),
    )


def in_words(value: Any, parameter: Parameter) -> str:
    """The value of a parameter; a number alone counts its unit."""
    if value is None:
        return "never"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0%}"
    if isinstance(value, tuple):
        return " or ".join(f"from {in_words(each, parameter)} on" for each in value) or parameter.empty
    if is_dataclass(value):
        between = " and " if isinstance(value, Trigger) else " or "
        counts = amounts(value) or {parameters_of(value)[0].unit: 0}  # type: ignore[arg-type]
        return between.join(f"{n:.0%} {of}" if isinstance(n, float) else f"{n:,} {of}" for of, n in counts.items())
    return f"{value:,} {parameter.unit}" if isinstance(value, int) else str(value)


def aim_of(preset: Preset) -> str:
    small = f"; {preset.small_chat_aim} in chats without tools, in windows up to {SMALL_WINDOW:,} tokens"
    return preset.aim + (small if preset.small_chat_aim else "")


def _writer(preset: Preset) -> str | None:
    """Which model writes what; None where the preset wants nothing of a model."""
    if not preset.summarizes and preset.digests is None:
        return None
    writing, stale = preset.writing, preset.writing.stale
    models = ", ".join(f"{model} at {provider}" if provider else model for provider, model in writing.models)
    writer = models or "the small sibling of the conversation's model"
    texts = " and ".join(("summaries",) * preset.summarizes + ("digests",) * (preset.digests is not None))
    words = f"{texts} are written by {writer}, unless `summarizers` names another"
    words += f", {writing.tokens:,} tokens at most" if writing.tokens else ""
    words += ", told by a prompt of its own" if writing.prompt else ""
    words += f"; a stale summary: {stale.then}" if stale.then else ""
    words += f"; each counts for {duration(stale.ttl)}" if stale.ttl else ""
    if stale.same_model is not None:
        words += f"; one by another model is {'' if stale.same_model else 'not '}stale"
    return words


# --- for a terminal ---

_AIMS: Mapping[Aim, str] = {
    "bill": "it acts where that pays",
    "steady": "it changes what was sent only near the window, and when the cache has expired",
    "context": "it acts at the triggers and sizes below, and costs or saves what that does",
}


def print_presets(console: Console, presets: Sequence[PresetDescription]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("preset", no_wrap=True)
    table.add_column("for whom")
    for preset in presets:
        table.add_row(Text(preset.name, style="bold"), Text(preset.for_whom or _about(preset)))
    console.print(table)
    print_last_line(console, _LAST_LINE)


def print_preset(console: Console, preset: PresetDescription) -> None:
    """The policies in their order, with their parameters; exceptions to the laws; who writes its summaries."""
    console.print(Text.assemble((preset.name, "bold"), f"  {_about(preset)}"))
    if preset.for_whom:
        console.print(Text(f"for {preset.for_whom}"))
    base_aim = f" (base: {preset.base_aim})" if preset.base_aim else ""
    console.print(Text(f"aim: {preset.aim}{base_aim}"))
    for aim, means in _AIMS.items():
        if aim in preset.aim:
            console.print(Text(f"  {aim}: {means}", style="dim"))
    if preset.sight:
        console.print(Text(f"sight: windows so wide that {preset.sight:.0%} of actions may need something hidden"))
    for exception in preset.exceptions:
        console.print(Text(f"exception to the laws: {printable(exception, 500)}"))
    console.print(Text(printable(preset.writer, 500) if preset.writer else "no model is asked"))
    if preset.left_out_of_base:
        console.print(Text(f"of the base it leaves out {', '.join(preset.left_out_of_base)}"))
    for at, policy in enumerate(preset.policies, 1):
        news = " (the base has none of it)" if policy.not_in_base else ""
        console.print(Text.assemble(f"\n{at}. ", (policy.policy, "bold"), f"  {policy.does}{news}"))
        table = Table.grid(Column(no_wrap=True), padding=(0, 2))
        for each in policy.parameters:
            base = f" (base: {each.base})" if each.base else ""
            table.add_row(Text(each.name), Text(f"{each.value}{base}"), Text(each.means, style="dim"))
        console.print(Padding(table, (0, 0, 0, 3)))


def _about(preset: PresetDescription) -> str:
    origin = f"(yours, from {preset.base}) " if preset.base else "(yours) " if preset.own else ""
    return f"{origin}{printable(preset.about, 500)}"


def presets(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Only this one, with everything that it does.", autocompletion=offers(*PRESETS)
        ),
    ] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the presets, or say what one of them does.

    With NAME: its policies in their order and their parameters, its exceptions to the laws, and who writes its
    summaries. Those of your own come from --config or NARROWS_CONFIG; what differs from their base is marked.

    Columns: for whom it is. What each costs and leaves in sight stands in policies/README.md; `narrows replay
    --preset NAME` measures it on your sessions.
    """
    with refusing():
        own = presets_in(config)
        described = [describe(each, own) for each in ([name] if name else [*PRESETS, *own])]
    if as_json:
        print_json(values_of(described[0] if name else described))
    elif name:
        print_preset(console(), described[0])
    else:
        print_presets(console(), described)
