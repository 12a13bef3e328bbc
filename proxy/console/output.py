"""The output of commands: tables on a terminal, one JSON object, a bar of progress, or one line of refusal."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import cleandoc
from operator import attrgetter
from typing import Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_Command = TypeVar("_Command", bound=Callable[..., Any])
WIDE = 100
"""Columns of what is not printed to a terminal."""


@contextmanager
def refusing() -> Iterator[None]:
    """A fault of the options or the files ends the command, with one line."""
    try:
        yield
    except ValueError as error:
        print(f"narrows: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from error


@contextmanager
def progress(total: int, unit: str = "requests") -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn(unit), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def console() -> Console:
    """Standard output. It takes no word of a request for a style."""
    plain = partial(Console, highlight=False, markup=False, emoji=False)
    console = plain()
    return console if console.is_terminal else plain(width=WIDE)


def plain_table(*columns: str, left: int = 1, title: str = "") -> Table:
    """A plain table; all but the first `left` columns hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=title or None, show_edge=False)
    table.title_justify, table.title_style = "left", "bold"
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < left else "right", no_wrap=True, overflow="ellipsis")
    return table


def printable(text: str, most: int = 200) -> str:
    """The text on one line, without anything that a terminal obeys."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return clean if len(clean) <= most else clean[: most - 1] + "~"


def as_json(value: Any, digits: int = 6) -> Any:
    """A value as `--json` prints it: of a dataclass its fields, or the attributes that its `JSON` lists.

    A name may end with an underscore where Python needs that. An entry of `JSON` may be `key=path`, where the value
    belongs to an attribute. Shares and ratios have 4 decimal places, other fractions `digits`, or their own `DIGITS`.
    """
    if is_dataclass(value):
        digits = getattr(value, "DIGITS", digits)
        row = {}
        for entry in getattr(value, "JSON", [field.name for field in fields(value)]):
            key, _, path = entry.partition("=")
            places = 4 if "ratio" in key or "share" in key else digits
            row[key.rstrip("_")] = as_json(attrgetter(path or entry)(value), places)
        return row
    if isinstance(value, Mapping):
        return {key: as_json(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each, digits) for each in value]
    return round(value, digits) if isinstance(value, float) else value


def print_json(value: object) -> None:
    print(json.dumps(value, indent=1))


# --- what the columns of a report mean ---


def explains_columns(text: str) -> Callable[[_Command], _Command]:

    def explained(command: _Command) -> _Command:
        command.__doc__ = f"{cleandoc(command.__doc__ or '')}\n\n{cleandoc(text)}"
        return command

    return explained


def print_last_line(console: Console, text: str) -> None:
    console.print(Text(" ".join(text.split()), style="dim"))
