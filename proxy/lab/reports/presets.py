"""Presets for a terminal: all of them with a line each, or one with everything that it does."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from proxy.lab.preset_descriptions import Book, Layer
from proxy.lab.reports.drawing import printable


def listing(console: Console, plan_state: Sequence[Book]) -> None:
    """A line for each."""
    table = _columns(2)
    for book in plan_state:
        table.add_row(Text(book.name, style="bold"), Text(f"{_origin(book)}{printable(book.about, 500)}"))
    console.print(table)
    console.print(Text("narrows presets NAME says what one of them does.", style="dim"))


def portrait(console: Console, book: Book) -> None:
    """The policies in their order, with their parameters; exceptions to the laws; who writes its summaries."""
    console.print(Text.assemble((book.name, "bold"), f"  {_origin(book)}{printable(book.about, 500)}"))
    for line in _remarks(book):
        console.print(Text(line))
    for at, layer in enumerate(book.layers, 1):
        console.print(Text.assemble(f"\n{at}. ", (layer.name, "bold"), f"  {layer.does}{_news(layer)}"))
        console.print(Padding(_parameters(layer), (0, 0, 0, 3)))


def _origin(book: Book) -> str:
    if not book.own:
        return ""
    return f"(yours, from {book.base}) " if book.base else "(yours) "


def _news(layer: Layer) -> str:
    return " (the base has none of it)" if layer.added else ""


def _remarks(book: Book) -> Iterator[str]:
    for exception in book.exceptions:
        yield f"exception to the laws: {printable(exception, 500)}"
    yield f"a model writes for it, {printable(book.writer, 500)}" if book.writer else "no model writes anything for it"
    if book.left_out:
        yield f"of the base it leaves out {', '.join(book.left_out)}"


def _parameters(layer: Layer) -> Table:
    table = _columns(3)
    for parameter in layer.parameters:
        was = f" (base: {parameter.was})" if parameter.was else ""
        table.add_row(Text(parameter.name), Text(f"{parameter.value}{was}"), Text(parameter.means, style="dim"))
    return table


def _columns(count: int) -> Table:
    """Columns side by side, the last of which takes what room there is."""
    table = Table.grid(padding=(0, 2))
    for at in range(count):
        table.add_column(no_wrap=at == 0)
    return table
