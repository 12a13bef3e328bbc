"""The settings as options of `narrows serve`: a word for the values of each, its default as people write it, its group.

Law: an option that is not there leaves its setting to the environment and the file.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo

from policies.presets import PRESETS
from proxy.config import load_settings
from proxy.config.errors import ConfigurationError
from proxy.config.settings import GROUPS, Settings
from proxy.config.sources import lists_words, value_of
from proxy.config.units import IN_MILLISECONDS, IN_SECONDS, duration, size
from proxy.console.arguments import offers

_TYPES: Mapping[Any, str] = {
    str: "TEXT",
    int: "N",
    float: "NUMBER",
    ByteSize: "SIZE",
    Path: "PATH",
    SecretStr: "SECRET",
}
"""The word that stands for the values of a type. Those of any other type are tables, or lists of them."""
_PART = "__"


def taking_settings(run: Callable[[Mapping[str, Any]], None]) -> Callable[..., None]:
    """The command whose options are the settings, and which hands those that are there to `run`."""

    def command(**options: Any) -> None:
        run(_settings_in({name: value for name, value in options.items() if value is not None}))

    options = []
    for group in GROUPS:
        for name, field in group.model_fields.items():
            parts = getattr(field.annotation, "model_fields", {})
            rows = {name: field, **{f"{name}.{part}": inner for part, inner in parts.items()}}
            options += [_option(path, each, str(group.__doc__)) for path, each in rows.items()]
    setattr(command, "__signature__", Signature(options))  # noqa: B010 - functions have no such attribute in their type
    command.__doc__ = run.__doc__
    return command


def default_in_words(field: FieldInfo) -> str:
    """A default as people write it; empty where there is none."""
    value, marks = field.default, _kind_and_marks(field)[1]
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["default"])
    if isinstance(value, BaseModel):
        return f"{{ {', '.join(f'{name} = {part:g}' for name, part in value)} }}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        for unit, mark in (("s", IN_SECONDS), ("ms", IN_MILLISECONDS)):
            if mark in marks:
                return duration(value, unit)
    if isinstance(value, ByteSize):
        return size(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, (int, str)) else ""


def _option(path: str, field: FieldInfo, heading: str) -> Parameter:
    kind, marks = _kind_and_marks(field)
    name, default = f"--{path.replace('_', '-')}", default_in_words(field)
    example = f"; better in the file: {path} = {field.examples[0]}" if field.examples else ""
    choices = get_args(kind) if get_origin(kind) is Literal else list(PRESETS) if "preset" in path else ()
    option = typer.Option(
        f"{name}/--no-{name[2:]}" if kind is bool else name,
        metavar=None if kind is bool else _word(kind, marks, field),
        help=f"{field.description}{example}{default and f'  [default: {default}]'}",
        show_default=False,
        rich_help_panel=heading,
        autocompletion=offers(*choices),
    )
    values: Any = bool if kind is bool else list[str] if get_origin(kind) is tuple else str
    annotation = Annotated[values | None, option]
    return Parameter(path.replace(".", _PART), Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _kind_and_marks(field: FieldInfo) -> tuple[Any, Sequence[Any]]:
    """The type of the values but for None, and what is noted beside it."""
    kinds = [each for each in get_args(field.annotation) if each is not NoneType]
    kind = kinds[0] if NoneType in get_args(field.annotation) else field.annotation
    return (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, field.metadata)


def _word(kind: Any, marks: Sequence[Any], field: FieldInfo) -> str:
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if IN_SECONDS in marks or IN_MILLISECONDS in marks:
        return "TIME"
    if lists_words(field):
        return "LIST"
    return _TYPES.get(kind) or ("TABLE" if _is_table(kind) else "TABLES")


def _is_table(kind: Any) -> bool:
    return get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel))


def _settings_in(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of settings in those of options. Raises ConfigurationError."""
    settings: dict[str, Any] = {}
    for option, value in options.items():
        name, _, part = option.partition(_PART)
        field = Settings.model_fields[name]
        try:
            if part and isinstance(table := settings.setdefault(name, {}), dict):  # any other is refused as a whole
                table[part] = value
            elif isinstance(value, list):
                items = [value_of(field, word) for word in value]
                settings[name] = [each for item in items for each in (item if isinstance(item, list) else [item])]
            elif not part:
                settings[name] = value_of(field, value) if _is_table(_kind_and_marks(field)[0]) else value
        except ConfigurationError as error:
            raise ConfigurationError(f"{name}: {error} (--{name.replace('_', '-')})") from error
    return settings


@taking_settings
def serve(flags: Mapping[str, Any]) -> None:
    """Run the proxy.

    Every setting is an option here, a variable (NARROWS_PORT) and a key of the TOML file that --config names (port).
    They take precedence in that order. TIME is a duration such as 90s, 25m or 30d, SIZE a size such as 64MiB; commas
    stand in a LIST. What is a TABLE is easier to write in the file.
    """
    read = partial(load_settings, flags)
    settings = read()
    from proxy.console.serve import serve as run  # which takes long to load

    run(settings, read)
