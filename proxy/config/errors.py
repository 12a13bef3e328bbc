"""How a configuration that cannot work is refused: what is wrong, and what is allowed instead.

Laws
  A refusal names the setting by its whole path; whoever is nearly right is told what was probably meant.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Path = Sequence[str | int]
"""Where a value stands: keys of tables, and indices of lists."""

_NO_WORD = 64
"""A longer one resembles nothing."""


class ConfigurationError(ValueError):
    """The configuration cannot work; the text says which setting and what to do, one line each."""


def refused(code: str, message: str) -> PydanticCustomError:
    """A refusal whose text reaches the reader as it is."""
    return PydanticCustomError("impossible_" + code, "{text}", {"text": message})


def refused_at(faults: Iterable[tuple[Path, str]]) -> ValidationError:
    """Refusals of what stands somewhere inside the value at hand."""
    lines = [InitErrorDetails(type=refused("value", message), loc=tuple(path), input=None) for path, message in faults]
    return ValidationError.from_exception_data("settings", lines, hide_input=True)


def unknown(what: str, word: str, names: Iterable[str]) -> str:
    """The message that there is nothing of this name: what was probably meant, and what there is."""
    choices = sorted(names)
    return f"there is no {what} {word[:_NO_WORD]!r}{meant(word, choices)}; choose one of {', '.join(choices)}"


def meant(word: str, names: Sequence[str], mark: str = "") -> str:
    """A question after the name that resembles the word; empty where none does. `mark`: what stands before each."""
    near = get_close_matches(word, names, n=1) if len(word) <= _NO_WORD else []
    return f" (did you mean {mark}{near[0]}?)" if near else ""


_PLAIN: Mapping[str, str] = {
    "bool_parsing": "give true or false",
    "bool_type": "give true or false",
    "byte_size": "give a number of bytes, or a size such as 64MiB, 1GiB or 1.5GB",
    "byte_size_unit": "give a number of bytes, or a size such as 64MiB, 1GiB or 1.5GB",
    "dict_type": "give a table",
    "extra_forbidden": "there is no such setting",
    "finite_number": "give a finite number",
    "float_parsing": "give a number",
    "float_type": "give a number",
    "greater_than": "give more than {gt:.12g}",
    "greater_than_equal": "give {ge:.12g} or more",
    "int_from_float": "give a whole number",
    "int_parsing": "give a whole number",
    "int_parsing_size": "give a whole number of fewer digits",
    "int_type": "give a whole number",
    "less_than": "give less than {lt:.12g}",
    "less_than_equal": "give {le:.12g} or less",
    "list_type": "give a list",
    "missing": "it is missing; add it",
    "model_type": "give a table",
    "path_type": "give the name of a file",
    "string_too_short": "it is empty; give a text, or leave it out",
    "string_type": "give a text",
    "timezone_aware": "give a time with its zone, such as 2027-01-31T00:00:00Z",
    "too_short": "it is empty; give one at least",
    "tuple_type": "give a list",
}
"""What to do about a value of the wrong kind, by pydantic's name of the fault."""


def plain(fault: ErrorDetails) -> str:
    """What to do about a fault, without a word of pydantic."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context["expected"]))
        listed = " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
        return f"give {listed}{meant(str(fault['input']), choices)}"
    if kind.startswith(("datetime_", "timezone_", "date_")):
        kind = "timezone_aware"
    return _PLAIN[kind].format(**context) if kind in _PLAIN else fault["msg"].removeprefix("Value error, ")


class Table(BaseModel):
    """A table of the file. Keys that it does not know are refused, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_keys(cls, table: Any) -> Any:
        strange = [str(key) for key in table if key not in cls.model_fields] if isinstance(table, Mapping) else []
        if strange:
            raise refused_at([((key,), unknown("setting", key, cls.model_fields)) for key in strange])
        return table
