"""One's own presets: what a TOML table says becomes a `Preset`.

    [presets.mine]
    base = "coding-agent"
    [[presets.mine.policies]]
    policy = "clip"
    keep = { messages = 6 }

Laws
  Types and ranges are those of the policy's own signature: a new policy, or a new parameter, needs nothing here.
  What is not given is as in the base's entry of that policy, else as that policy usually is.
  What cannot work is refused when it is loaded.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, create_model, model_validator

from policies.context import Exceptions, Policy
from policies.model.windows import Size, Window
from policies.presets import POLICIES, PRESETS, Preset, Writing
from proxy.config.errors import Path, Table, refused, refused_at, unknown
from proxy.config.limits import impossible, repeated

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""How presets and tenants may be called."""
MOST = 1_000_000_000
"""The largest number that means anything, whatever it counts."""
_NUMBER = Annotated[int, Field(strict=True, ge=0, le=MOST)]
_SCALARS: Mapping[Any, Any] = {
    int: _NUMBER,
    float: Annotated[float, Field(strict=True, ge=0, le=1)],
    bool: Annotated[bool, Field(strict=True)],
}
"""What a number may be: none is negative, and what has a point is a share."""
ALL = "all"
"""The word for all presets that come with Narrows."""
ALONE: Mapping[type, str] = {Size: "tokens", Window: "turns"}
"""What a number alone counts, where a table could stand."""

_Text = Annotated[str, Field(min_length=1)]
_MODELS: TypeAdapter[dict[Literal["openai", "anthropic"], str]] = TypeAdapter(
    dict[Literal["openai", "anthropic"], _Text]
)


@dataclass(frozen=True, slots=True)
class Own:
    """A preset of a person's own, and the one that it starts from."""

    preset: Preset
    base: str = ""


# --- types: from the signature of a policy to what is checked ---


def _checked(kind: Any) -> Any:
    """What is checked where a parameter has this type."""
    inner: Any = get_args(kind)
    if get_origin(kind) is UnionType:
        return _number_or_table(next(each for each in inner if is_dataclass(each)), NoneType in inner)
    if get_origin(kind) is Sequence:
        return tuple.__class_getitem__((_checked(inner[0]), ...))
    return _table_of(kind) if isinstance(kind, type) and is_dataclass(kind) else _SCALARS.get(kind, kind)


@cache
def _table_of(kind: Any) -> Any:
    """A table with the fields of a dataclass; it becomes one."""
    members: Any = {field.name: (_SCALARS[field.type], field.default) for field in fields(kind)}
    model = create_model(kind.__name__, __base__=Table, **members)

    def made(table: Table) -> Any:
        if not any(table.model_dump().values()):
            raise refused("empty", f"it says nothing; give one of {', '.join(members)} that is more than 0")
        return kind(**table.model_dump())

    return Annotated[model, AfterValidator(made)]


def _number_or_table(kind: Any, optional: bool) -> Any:
    """A number, or a table; where it is `optional`, also false, which is None."""
    table, number = TypeAdapter(_table_of(kind)), TypeAdapter(_NUMBER)
    names = ", ".join(field.name for field in fields(kind))
    never = ", or false" if optional else ""

    def read(value: object) -> Any:
        if isinstance(value, Mapping):
            return table.validate_python(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return number.validate_python(value)
        if value is False and optional:
            return None
        raise refused("amount", f"give a number ({ALONE[kind]}), or a table of {names}{never}")

    return Annotated[Any, PlainValidator(read)]


def _needed(parameter: inspect.Parameter) -> Any:
    """What is checked of a parameter: a list that has to be there has to say something."""
    kind = _checked(parameter.annotation)
    is_list = get_origin(parameter.annotation) is Sequence and parameter.default is parameter.empty
    return Annotated[kind, Field(min_length=1)] if is_list else kind


@cache
def _model_of(policy: str) -> type[Table]:
    """The parameters of a policy, none of them required."""
    signature = inspect.signature(POLICIES[policy].func, eval_str=True)
    given = (each for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY)
    members: Any = {each.name: (_needed(each), None) for each in given}
    return create_model(policy, __base__=Table, **members, policy=(str, ...))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A policy by its name, and the parameters that were given."""

    name: str
    given: Mapping[str, Any]


def _entry(value: Any) -> _Entry:
    if not isinstance(value, Mapping) or not isinstance(value.get("policy"), str):
        raise refused("policy", f"name its `policy`: one of {', '.join(sorted(POLICIES))}")
    name = value["policy"]
    if name not in POLICIES:
        raise refused_at([(("policy",), unknown("policy", name, POLICIES))])
    table = _model_of(name).model_validate(value)
    return _Entry(name, {each: getattr(table, each) for each in table.model_fields_set - {"policy"}})


def _models(value: Any) -> tuple[tuple[str, str], ...]:
    """Pairs of a provider and the model that is asked there."""
    if isinstance(value, Mapping) and value:
        return tuple(_MODELS.validate_python(value).items())
    if isinstance(value, str) and value:
        return (("", value),)
    raise refused("models", "name a model, or one for `openai` and one for `anthropic`")


# --- recipes: from what is checked to a preset ---


class Recipe(Table):
    """What a table of `presets` may say."""

    base: str = ""
    about: str = ""
    first_sight: Annotated[bool, Field(strict=True)] | None = None
    system: tuple[_Text, ...] | None = None
    summary_prompt: _Text | None = None
    summary_model: Annotated[tuple[tuple[str, str], ...], PlainValidator(_models)] | None = None
    summary_tokens: Annotated[int, Field(strict=True, ge=100, le=20_000)] | None = None
    policies: tuple[Annotated[_Entry, PlainValidator(_entry)], ...] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.policies == ():
            raise refused_at([(("policies",), "give one at least")])
        if not self.base and self.policies is None:
            raise refused("recipe", "give a `base` to start from, or `policies`")
        return self

    def preset(self, known: Mapping[str, Preset], place: Path) -> Preset:
        """What it makes of the one that it starts from. `place` is where it stands: raises what pydantic makes a
        refusal of."""
        if self.base and self.base not in known:
            raise refused_at([((*place, "base"), unknown("preset", self.base, known))])
        base = known[self.base] if self.base else Preset(())
        policies = base.policies
        if self.policies is not None:
            if again := repeated([entry.name for entry in self.policies]):
                raise refused_at([((*place, "policies", again[0]), again[1])])
            policies = tuple(
                self._policy(base, entry, (*place, "policies", at)) for at, entry in enumerate(self.policies)
            )
        about = self.about or (f"as {self.base}, changed" if self.base else "")
        return Preset(policies, about, self._exceptions(base.exceptions), self._writing(base.writing))

    @staticmethod
    def _policy(base: Preset, entry: _Entry, place: Path) -> Policy:
        of_base = {each.func.__name__: each for each in base.policies if isinstance(each, partial)}
        made = partial(of_base.get(entry.name, POLICIES[entry.name]), **entry.given)
        if faults := [((*place, *path), message) for path, message in impossible(made.keywords)]:
            raise refused_at(faults)
        return made

    def _exceptions(self, base: Exceptions) -> Exceptions:
        return replace(base, **_given(first_sight=self.first_sight, system=self.system))

    def _writing(self, base: Writing) -> Writing:
        said = _given(prompt=self.summary_prompt, models=self.summary_model, tokens=self.summary_tokens)
        return replace(base, **said)


def _given(**values: Any) -> dict[str, Any]:
    """Those that were said."""
    return {name: value for name, value in values.items() if value is not None}


def _recipe(value: object) -> Own | Recipe:
    return value if isinstance(value, Own) else Recipe.model_validate(value)


_RECIPES: TypeAdapter[dict[str, Own | Recipe]] = TypeAdapter(
    dict[Annotated[str, Field(pattern=NAME)], Annotated[Any, PlainValidator(_recipe)]]
)


def own_presets(given: object) -> dict[str, Own]:
    """The presets that a table of recipes makes. Each may start from a built-in one or from one before it; those that
    are made already stay as they are. Raises what pydantic makes a refusal of."""
    known, made = dict(PRESETS), dict[str, Own]()
    for name, recipe in _RECIPES.validate_python(given).items():
        if name in PRESETS:
            raise refused_at([((name,), "a preset of this name comes with Narrows; choose another name")])
        if name == ALL:
            raise refused_at([((name,), "`narrows replay` calls all presets so; choose another name")])
        made[name] = recipe if isinstance(recipe, Own) else Own(recipe.preset(known, (name,)), recipe.base)
        known[name] = made[name].preset
    return made
