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
    lines = [InitErrorDetails(type=refused("value", message), loc=tuple(path), input=None) for path, message in faults]
    return ValidationError.from_exception_data("settings", lines, hide_input=True)


def check(faults: Iterable[tuple[Path, str]]) -> None:
    """Refuses what stands inside the value at hand, where there are any faults."""
    if rows := list(faults):
        raise refused_at(rows)


def unknown(what: str, word: str, names: Iterable[str]) -> str:
    """The message that there is nothing of this name: what was probably meant, and what there is."""
    choices = sorted(names)
    return f"there is no {what} {word[:_NO_WORD]!r}{meant(word, choices)}; choose one of {', '.join(choices)}"


def meant(word: str, names: Sequence[str], mark: str = "") -> str:
    """A question after the name that resembles the word; empty where none does. `mark`: what stands before each."""
    near = get_close_matches(word, names, n=1) if len(word) <= _NO_WORD else []
    return f" (did you mean {mark}{near[0]}?)" if near else ""


_FORMS: Mapping[str, str] = {
    "key_sha256": "give the SHA-256 of a credential (64 hexadecimal digits)",
    "model": "give a name, with one * at its end at most",
    "sha256": "give the SHA-256 that `narrows keys new` printed (64 hexadecimal digits), not the key",
    "summary_allow": "give the SHA-256 of a credential (64 hexadecimal digits), or *",
}
"""The form of texts that are no plain names, by their setting."""
_WORDS: Mapping[str, str] = {
    "byte_size": "give a number of bytes, or a size such as 64MiB",
    "byte_size_unit": "give a number of bytes, or a size such as 64MiB",
    "dict_type": "give a table",
    "extra_forbidden": "there is no such setting",
    "model_type": "give a table",
    "string_pattern_mismatch": "give 1 to 64 letters, digits and . _ -",
    "too_short": "it is empty; give one at least",
    "tuple_type": "give a list",
}
"""Where pydantic's words are those of Python, and not those of a file."""


def plain(fault: ErrorDetails) -> str:
    kind, text = fault["type"], fault["msg"].removeprefix("Value error, ")
    if kind == "literal_error":
        return text + meant(str(fault["input"]), re.findall("'([^']*)'", str(fault["ctx"]["expected"])))
    if kind == "string_pattern_mismatch":
        return next((_FORMS[str(step)] for step in reversed(fault["loc"]) if step in _FORMS), _WORDS[kind])
    return _WORDS.get(kind, text)


class Table(BaseModel):
    """A table of the file. Keys that it does not know are refused, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_keys(cls, table: Any) -> Any:
        strange = [str(key) for key in table if key not in cls.model_fields] if isinstance(table, Mapping) else []
        check(((key,), unknown("setting", key, cls.model_fields)) for key in strange)
        return table
