"""Where settings come from (flags, the environment, a TOML file), and the messages about what cannot work in them.

Laws
  Flags win over the environment, and that over the file.
  A message names the setting's whole path, and the line of the file or the name of the flag and the variable.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from tomllib import TOMLDecodeError, loads
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from proxy.config import errors
from proxy.config.errors import ConfigurationError, meant, plain

PREFIX = "NARROWS_"
_CLOSERS = ("", "]", "]]", "]}", "]}]")
"""Lines that may end a list that the line before leaves open."""
_DEEP = "a value with hundreds of lists or tables inside each other; make it flatter"


def lists_words(field: FieldInfo) -> bool:
    """True where the value is a list of texts, and not of tables."""
    items = get_args(field.annotation)
    is_table = bool(items) and isinstance(items[0], type) and issubclass(items[0], BaseModel)
    return get_origin(field.annotation) is tuple and not is_table


def value_of(field: FieldInfo, text: str) -> Any:
    """A list or a table, as in the file or as JSON; words may have commas between. Raises ConfigurationError."""
    if lists_words(field) and not text.lstrip().startswith("["):
        return [word for word in map(str.strip, text.split(",")) if word]
    try:
        for read in (json.loads, lambda toml: loads(f"value = {toml}")["value"]):
            with suppress(ValueError):
                return read(text)
    except RecursionError as error:
        raise ConfigurationError(f"it holds {_DEEP}") from error
    example = f", for example {field.examples[0]}" if field.examples else ""
    raise ConfigurationError(f"it cannot be read; write it as in the file{example}")


class Variables(EnvSettingsSource):
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """A list or a table. Raises ConfigurationError."""
        try:
            return value_of(field, value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{field_name}: {error} ({PREFIX}{field_name.upper()})") from error


class TomlFile(PydanticBaseSettingsSource):
    """The file that the sources before this one (flags, environment) name in `config`."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        return loads(_text_of(Path(path))) if path else {}


def _text_of(path: Path) -> str:
    """A TOML file. Raises ConfigurationError."""
    try:
        text = path.read_bytes().decode()
        loads(text)
    except OSError as error:
        raise ConfigurationError(f"config: cannot read {path} ({error.strerror}); name a TOML file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"config: {path} cannot be read as TOML: {error}") from error
    return text


class Configured(BaseSettings):
    """Settings that are read from flags, the environment and a file; others there need not fit this machine."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, hide_input_in_errors=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, *cls.around(Variables(settings_cls), TomlFile(settings_cls))

    @classmethod
    def around(cls, *sources: PydanticBaseSettingsSource) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources besides flags that are read."""
        return sources


_Kind = TypeVar("_Kind", bound=Configured)


def loaded(kind: type[_Kind], flags: Mapping[str, Any]) -> _Kind:
    """The settings of all sources together. Raises ConfigurationError, one line for each fault."""
    try:
        return kind(**flags)
    except SettingsError as error:  # around a variable that cannot even be read
        raise ConfigurationError(str(error.__cause__)) from error
    except ValidationError as error:
        raise ConfigurationError("\n".join(_sentences(error, kind, flags))) from error
    except RecursionError as error:
        raise ConfigurationError(f"a setting holds {_DEEP}") from error


def _sentences(error: ValidationError, kind: type[Configured], flags: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each fault, with the place of its setting. One that follows from a fault inside it is left out."""
    variables = {name.upper(): value for name, value in os.environ.items()}
    file = flags.get("config") or variables.get(f"{PREFIX}CONFIG")
    text = _text_of(Path(file)) if file else ""
    faults = [(tuple(step for step in fault["loc"] if step != "[key]"), fault) for fault in error.errors()]
    around = {path[:end] for path, _ in faults for end in range(1, len(path))}
    for path, fault in faults:
        if not path:  # refused by a rule about several settings, which names them itself
            yield fault["msg"]
        elif path not in around:
            setting, name = str(path[0]), ".".join(map(str, path))
            option, variable, line = f"--{setting.replace('_', '-')}", PREFIX + setting.upper(), line_of(text, path)
            places = [option] * (setting in flags) + [variable] * (variable in variables)
            places += [f"{file}, line {line}"] * bool(line)
            place = " or ".join(places[: len(path)]) or f"{option}, {variable} or `{setting}` in the file"
            hint = f"{meant(name, [*kind.model_fields])}; see narrows serve --help"
            sentence = f"{name}: {plain(fault)}{hint if fault['type'] == 'extra_forbidden' else ''} ({place})"
            # a file may hold line breaks and control characters
            yield "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)


def line_of(text: str, path: errors.Path) -> int:
    """The line, from 1, where a TOML text comes to the path or to the nearest around it; 0 where there is none."""
    whole = loads(text)
    while path and not _holds(whole, path):
        path = path[:-1]
    lines = text.split("\n")
    counts = range(1, len(lines) + 1)
    return 1 + bisect_left(counts, True, key=lambda count: _holds(_beginning(lines, count), path)) if path else 0


def _holds(table: object, path: errors.Path) -> bool:
    for step in path:
        is_there = isinstance(table, Mapping) and step in table
        if not is_there and not (isinstance(table, list) and isinstance(step, int) and step < len(table)):
            return False
        table = table[step]  # type: ignore[index]  # it was just looked up there
    return True


def _beginning(lines: Sequence[str], count: int) -> Mapping[str, Any]:
    """The first `count` lines, parsed; a value that they leave open is closed, or completed by the lines after."""
    for end, closer in product(range(count, len(lines) + 1), _CLOSERS):
        try:
            return loads("\n".join((*lines[:end], closer)))
        except TOMLDecodeError:
            continue
    return {}
