"""Where settings come from (flags, the environment, a TOML file), and the messages about what cannot work in them.

Laws
  Flags win over the environment, and that over the file.
  A message names the setting's whole path, and the line of the file or the name of the flag and the variable.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tomllib import TOMLDecodeError, loads
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from proxy.config import errors
from proxy.config.errors import ConfigurationError, meant
from proxy.config.help import make_readable

PREFIX = "NARROWS_"
"""How the names of environment variables begin."""
_CLOSERS = ("", "]", "]]", "]}", "]}]")
"""What may end a list that the line before leaves open."""
_WORDS: Mapping[str, str] = {
    "tuple_type": "give a list",
    "dict_type": "give a table",
    "model_type": "give a table",
    "too_short": "give one at least",
    "timezone_aware": "give a time with its zone, such as 2027-01-31T00:00:00Z",
    "byte_size": "give a number of bytes, or a size such as 64MiB",
    "byte_size_unit": "give a number of bytes, or a size such as 64MiB",
}
"""What to do about some faults, in words of the file."""
_UNPARSED, _UNKNOWN = "error parsing CLI: ", "unrecognized arguments: "
"""How a message about flags begins, and how the fault in it begins where a flag is not known."""
_NOT_JSON = re.compile(r'error parsing value for field "(\w+)" from source "EnvSettingsSource"')
_PATTERNS: Mapping[str, str] = {
    "summary_allow": "give the SHA-256 of a credential (64 hexadecimal digits), or *",
    "key_sha256": "give the SHA-256 of a credential (64 hexadecimal digits)",
    "sha256": "give the SHA-256 that `narrows keys new` printed (64 hexadecimal digits), not the key",
}
"""What to give where the text has not the form that its setting needs."""
_DEEP = "a value with hundreds of lists or tables inside each other; make it flatter"


class TomlFile(PydanticBaseSettingsSource):
    """The file that the sources before this one (flags, environment) name in `config`."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Nothing by itself: the whole file is read at once."""
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
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"config: {path} is not valid TOML: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"config: {path} holds a number of thousands of digits; make it smaller") from error
    except RecursionError as error:
        raise ConfigurationError(f"config: {path} holds {_DEEP}") from error
    return text


class Configured(BaseSettings):
    """Settings that are read from flags, the environment and a file."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags stand before all of these."""
        return init_settings, *cls.around(env_settings, TomlFile(settings_cls))

    @classmethod
    def around(cls, *sources: PydanticBaseSettingsSource) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources besides flags that are read."""
        return sources


_Kind = TypeVar("_Kind", bound=Configured)


class _ConfigFile(BaseSettings):
    """The file that flags or the environment name."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", cli_ignore_unknown_args=True)

    config: Path | None = None


def loaded(kind: type[_Kind], flags: Sequence[str], defaults: Mapping[str, str]) -> _Kind:
    """The settings of all sources together; `defaults` are words for the help where a value says nothing to people.
    Raises ConfigurationError, one line for each fault; exits on `--help`."""
    source = CliSettingsSource[Any](kind)
    make_readable(source.root_parser, defaults)
    try:
        try:
            return CliApp.run(kind, cli_args=list(flags), cli_settings_source=source)
        except SettingsError as error:
            raise ConfigurationError(_unread(str(error), tuple(kind.model_fields))) from error
        except ValidationError as error:
            path = CliApp.run(_ConfigFile, cli_args=list(flags)).config
            explainer = _Explainer(tuple(kind.model_fields), tuple(flags), path, _text_of(path) if path else "")
            raise ConfigurationError("\n".join(explainer.sentences(error))) from error
    except RecursionError as error:
        raise ConfigurationError(f"a setting holds {_DEEP}") from error


def _unread(message: str, names: Sequence[str]) -> str:
    """What is wrong with flags or variables that cannot even be parsed; for a flag, which one was probably meant."""
    field = _NOT_JSON.match(message)
    if field:
        return f"{field[1]}: give JSON ({PREFIX}{field[1].upper()})"
    fault = message.removeprefix(_UNPARSED)
    word = fault.removeprefix(_UNKNOWN).split()[0].partition("=")[0] if fault.startswith(_UNKNOWN) else ""
    options = [f"--{name.replace('_', '-')}" for name in names]
    return f"{fault}{meant(word, options) if word else ''}; `narrows serve --help` lists the settings"


@dataclass(frozen=True, slots=True)
class _Explainer:
    """Explains faults: it has the names of all settings, and the sources that they may come from."""

    names: tuple[str, ...]
    flags: tuple[str, ...]
    path: Path | None
    text: str

    def sentences(self, error: ValidationError) -> Iterator[str]:
        """What is wrong with each setting, and where it is set. One that follows from a fault inside it is left out."""
        # a fault in the name of a table counts as one of the table
        faults = [
            (tuple(step for step in fault["loc"] if step != "[key]"), fault)
            for fault in error.errors(include_url=False)
        ]
        around = {path[:end] for path, _ in faults for end in range(1, len(path))}
        for path, fault in faults:
            if path not in around:
                sentence = self._sentence(path, fault)  # a file may hold line breaks and control characters
                yield "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)

    def _sentence(self, path: tuple[str | int, ...], fault: ErrorDetails) -> str:
        if not path:  # refused by a rule about several settings, which names them itself
            return fault["msg"]
        name, message = ".".join(map(str, path)), _WORDS.get(fault["type"], fault["msg"])
        if fault["type"] == "string_pattern_mismatch":
            message = next((_PATTERNS[str(step)] for step in reversed(path) if step in _PATTERNS), message)
        if fault["type"] == "extra_forbidden":
            message = f"there is no such setting{meant(name, self.names)}; see narrows serve --help"
        return f"{name}: {message} ({self._place(path)})"

    def _place(self, path: errors.Path) -> str:
        """The line of the file; the flag and the variable where these overrule the file, or it says nothing."""
        name = str(path[0])
        option, variable = name.replace("_", "-"), PREFIX + name.upper()
        flags = {each.partition("=")[0] for each in self.flags}
        overruled = flags & {f"--{option}", f"--no-{option}"} or variable in map(str.upper, os.environ)
        line = 0 if overruled else line_of(self.text, path)
        return f"{self.path}, line {line}" if line else f"--{option}, {variable} or `{name}` in the file"


def line_of(text: str, path: errors.Path) -> int:
    """The line of a TOML text, from 1, where it comes to what stands at the path, or to the nearest that is around it;
    0 where it knows nothing of it."""
    whole = loads(text)
    while path and not _holds(whole, path):
        path = path[:-1]
    lines = text.split("\n")
    counts = range(1, len(lines) + 1)
    return 1 + bisect_left(counts, True, key=lambda count: _holds(_beginning(lines, count), path)) if path else 0


def _holds(table: object, path: errors.Path) -> bool:
    """Whether something stands at the path."""
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
