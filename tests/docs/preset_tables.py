"""The tables of presets and of parameters in policies/README.md."""

from dataclasses import is_dataclass
from types import NoneType
from typing import Literal, get_args, get_origin

from policies.model.parameters import Parameter, parameters_of
from policies.presets import POLICIES, PRESETS
from proxy.console.presets import aim_of, in_words


def preset_table() -> str:
    """The table of all presets in the documentation, as Markdown, in the words of `narrows presets`."""
    rows = ["| preset | aim | what it does |", "|---|---|---|"]
    for name, preset in PRESETS.items():
        rows.append(f"| `{name}` | {aim_of(preset)} | {preset.about} |")
    return "\n".join(rows)


def parameter_table() -> str:
    """The table of all parameters in the documentation, as Markdown: what a value may be, and its usual value."""
    rows = ["| policy | parameter | value | usual | meaning |", "|---|---|---|---|---|"]
    for policy in POLICIES.values():
        for each in parameters_of(policy):
            usual = in_words(getattr(policy, each.name), each)
            rows.append(f"| `{policy.name}` | `{each.name}` | {_allowed(each)} | {usual} | {each.meaning} |")
    return "\n".join(rows)


def _allowed(parameter: Parameter) -> str:
    """The values that a parameter may have."""
    inner = get_args(parameter.type) or (parameter.type,)
    tables = [f"`{{ {', '.join(p.name for p in parameters_of(each))} }}`" for each in inner if is_dataclass(each)]
    if get_origin(parameter.type) is Literal:
        return ", ".join(f"`{each}`" for each in inner)
    if bool in inner:
        return "`true`, `false`"
    if float in inner:
        return f"{parameter.unit}, 0 to {'less than ' if parameter.below == 1 else ''}1"
    if int not in inner:
        return f"a list of {tables[0]}"
    number = f"{parameter.unit}, {parameter.minimum} or more" if parameter.minimum else parameter.unit
    return " or ".join([number, *tables, *(["`false`"] if NoneType in inner else [])])
