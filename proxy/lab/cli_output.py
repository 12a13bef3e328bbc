"""What commands print: tables on a terminal, one JSON object, a page, a bar of progress, or one line of refusal."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from proxy.lab.reports.page_file import write

WIDE = 100
"""Columns of what is not printed to a terminal."""


@contextmanager
def refusing() -> Iterator[None]:
    """What is wrong with the options or the files ends the command, with one line."""
    try:
        yield
    except ValueError as error:
        print(f"narrows: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from error


@contextmanager
def progress(total: int, unit: str = "requests") -> Iterator[Callable[[], None]]:
    """A bar on stderr, where that is a terminal."""
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


def print_page(path: Path, page: str, as_json: bool) -> None:
    with refusing():
        write(path, page)
    if not as_json:
        print_place(path)


def print_place(path: Path) -> None:
    from proxy.lab.reports.tables import printable

    print(f"The page is in {printable(str(path))}")


def open_page(path: Path) -> None:
    """Show a page in the browser of this machine; where there is none, say so."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        print("narrows: there is no browser here; open the file in one elsewhere", file=sys.stderr)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=1))
