"""Presets of one's own: a TOML table becomes a `Preset`.

    [presets.mine]
    base = "coding-agent"
    [[presets.mine.policies]]
    policy = "clip"
    keep = { messages = 6 }

Laws
  Types and bounds are those of the policy's own fields: a new policy, or a new parameter, needs nothing here.
  What is not given is as in the base's entry of that policy, else as that policy usually is.
  What cannot work is refused when it is loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, create_model, model_validator

from policies.context import Aim
from policies.model.parameters import MOST, Parameter, parameters_of
from policies.presets import POLICIES, PRESETS, Preset, StaleAction, StaleOptions
from policies.rules.base import ConfiguredPolicy
from policies.tools.deferral import ToolLists
from proxy.config.errors import Path, Table, check, refused, refused_at, unknown
from proxy.config.units import Period

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
ALL = "all"
_SCALARS: Mapping[Any, Any] = {
    int: Annotated[int, Field(strict=True, ge=0, le=MOST)],
    float: Annotated[float, Field(strict=True, ge=0, le=1)],
    bool: Annotated[bool, Field(strict=True)],
}
_Text = Annotated[str, Field(min_length=1)]
_MODELS = TypeAdapter[Any](dict[Literal["openai", "anthropic"], _Text])


@dataclass(frozen=True, slots=True)
class CustomPreset:
    """A preset of one's own, and the name of the one that it starts from; empty where it starts from none."""

    preset: Preset
    base: str = ""


# --- from the fields of a policy to what is checked ---


def _checked(parameter: Parameter) -> Any:
    """The type that pydantic checks where a parameter stands: a number, a flag or a name, a list of tables, or a number
    in whose place a table may stand (and false, which is None)."""
    kind: Any = parameter.type
    if get_origin(kind) is Sequence:
        items = tuple.__class_getitem__((_table_of(get_args(kind)[0]), ...))
        return Annotated[items, Field(min_length=1)] if parameter.default is MISSING else items

    def bounded(value: Any) -> Any:
        if value < parameter.minimum:
            raise refused("bound", f"{value:,} {parameter.unit} are too few; give {parameter.minimum} at least")
        if parameter.below is not None and value >= parameter.below:
            raise refused("bound", f"it has to be less than {parameter.below:g}; give a lower {parameter.unit}")
        return value

    if get_origin(kind) is not UnionType:
        scalar = _SCALARS.get(kind, kind)
        return Annotated[scalar, AfterValidator(bounded)] if kind in (int, float) else scalar
    table_kind: Any = next(each for each in get_args(kind) if is_dataclass(each))
    numbers: Any = Annotated[_SCALARS[int], AfterValidator(bounded)]
    table, number = TypeAdapter(_table_of(table_kind)), TypeAdapter(numbers)
    names = ", ".join(each.name for each in parameters_of(table_kind))
    never = ", or false" if NoneType in get_args(kind) else ""

    def read(value: object) -> Any:
        if isinstance(value, Mapping):
            return table.validate_python(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return number.validate_python(value)
        if value is False and never:
            return None
        raise refused("amount", f"give a number ({parameter.unit}), or a table of {names}{never}")

    return Annotated[Any, PlainValidator(read)]


@cache
def _table_of(kind: Any) -> Any:
    """A table with the fields of a dataclass; it becomes one."""
    members: Any = {each.name: (_checked(each), each.default) for each in parameters_of(kind)}
    model = create_model(kind.__name__, __base__=Table, **members)

    def value_of(table: Table) -> Any:
        if not any(table.model_dump().values()):
            raise refused("empty", f"it says nothing; give one of {', '.join(members)} that is more than 0")
        return kind(**table.model_dump())

    return Annotated[model, AfterValidator(value_of)]


def _policy_entry(value: Any) -> tuple[str, Mapping[str, Any]]:
    """A policy by its name, and the parameters that the table gives, none of which is required."""
    if not isinstance(value, Mapping) or not isinstance(value.get("policy"), str):
        raise refused("policy", f"name its `policy`: one of {', '.join(sorted(POLICIES))}")
    name = value["policy"]
    if name not in POLICIES:
        raise refused_at([(("policy",), unknown("policy", name, POLICIES))])
    members: Any = {each.name: (_checked(each), None) for each in parameters_of(POLICIES[name])}
    table = create_model(name, __base__=Table, **members, policy=(str, ...)).model_validate(value)
    return name, {each: getattr(table, each) for each in table.model_fields_set - {"policy"}}


def _models(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, Mapping) and value:
        return tuple(_MODELS.validate_python(value).items())
    if isinstance(value, str) and value:
        return (("", value),)
    raise refused("models", "name a model, or one for `openai` and one for `anthropic`")


# --- from what is checked to a preset ---


class PresetTable(Table):
    base: str = ""
    about: str = ""
    first_sight: Annotated[bool, Field(strict=True)] | None = None
    system: tuple[_Text, ...] | None = None
    aim: Aim | None = None
    tools: ToolLists | None = None
    sight: Annotated[float, Field(strict=True, ge=0, le=0.25)] | None = None
    summary_prompt: _Text | None = None
    summary_model: Annotated[tuple[tuple[str, str], ...], PlainValidator(_models)] | None = None
    summary_tokens: Annotated[int, Field(strict=True, ge=100, le=20_000)] | None = None
    summary_stale: StaleAction | None = None
    summary_ttl: Period | None = None
    summary_same_model: Annotated[bool, Field(strict=True)] | None = None
    policies: tuple[Annotated[tuple[str, Mapping[str, Any]], PlainValidator(_policy_entry)], ...] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.policies == ():
            raise refused_at([(("policies",), "give one at least")])
        if not self.base and self.policies is None:
            raise refused("preset", "give a `base` to start from, or `policies`")
        return self

    def preset(self, presets: Mapping[str, Preset], path: Path) -> Preset:
        """The preset; `presets` are those that it may start from. Raises ValidationError with paths below `path`."""
        if self.base and self.base not in presets:
            raise refused_at([((*path, "base"), unknown("preset", self.base, presets))])
        base = presets[self.base] if self.base else Preset(())
        usual = {**POLICIES, **{policy.name: policy for policy in base.configured}}
        policies: dict[str, ConfiguredPolicy] = {}
        for at, (name, parameters) in enumerate(self.policies or ()):
            if name in policies:
                twice = f"{name} is there already, as policies.{list(policies).index(name)}"
                message = f"{twice}; a preset has each policy once: make them one"
                raise refused_at([((*path, "policies", at), message)])
            policies[name] = replace(usual[name], **parameters)
        for at, policy in enumerate(policies.values()):
            check(((*path, "policies", at, *place), message) for place, message in policy.conflicts())
        own = self.model_dump(exclude_none=True, exclude={"policies"})
        stale = StaleOptions(self.summary_stale, self.summary_ttl, self.summary_same_model).over(base.writing.stale)
        writing = {"prompt": "summary_prompt", "models": "summary_model", "tokens": "summary_tokens"}
        return Preset(
            base.policies if self.policies is None else tuple(policies.values()),
            self.about or (f"as {self.base}, changed" if self.base else ""),
            replace(base.exceptions, **{name: own[name] for name in ("first_sight", "system") if name in own}),
            replace(
                base.writing, stale=stale, **{name: own[setting] for name, setting in writing.items() if setting in own}
            ),
            self.aim or base.aim,
            None if self.aim else base.small_chat_aim,
            sight=base.sight if self.sight is None else self.sight,
            tools=self.tools or base.tools,
        )


def _preset_or_table(value: object) -> CustomPreset | PresetTable:
    return value if isinstance(value, CustomPreset) else PresetTable.model_validate(value)


_TABLES = TypeAdapter[Any](dict[Annotated[str, Field(pattern=NAME)], Annotated[Any, PlainValidator(_preset_or_table)]])


def custom_presets(tables: object) -> dict[str, CustomPreset]:
    """The presets that tables by name make. Each may start from a built-in one or from one before it; values that are
    presets already stay as they are. Raises pydantic's ValidationError."""
    presets, custom = dict(PRESETS), dict[str, CustomPreset]()
    for name, table in _TABLES.validate_python(tables).items():
        if name in PRESETS:
            raise refused_at([((name,), "a preset of this name comes with Narrows; choose another name")])
        if name == ALL:
            raise refused_at([((name,), "`narrows replay` calls all presets so; choose another name")])
        if isinstance(table, CustomPreset):
            custom[name] = table
        else:
            custom[name] = CustomPreset(table.preset(presets, (name,)), table.base)
        presets[name] = custom[name].preset
    return custom
