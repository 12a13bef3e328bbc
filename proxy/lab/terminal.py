"""Reports of the lab: bars to scale on a terminal, and where a report goes: the terminal, JSON, a file with a page.

Laws
  Bars of one picture have one scale; what is sent is solid and what is left out is light, so that no colour is needed
  to read them.
  Whether a file that a person names can be written is tried before anything is run; what was in it is replaced when the
  page is there. A file that nobody named is a new one, or has this very page, drawn at another time.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeVar

from rich.console import Console
from rich.text import Text

from proxy.console.output import as_json as values_of
from proxy.console.output import console, print_json, printable, refusing
from proxy.drawing.html import Imprint, Node, framed
from proxy.lab.breakdown import BeforeAfter, MessageSize

T = TypeVar("T")
STYLES: Mapping[str, str] = {
    "tools": "bright_black",
    "system": "bright_black",
    "user": "green",
    "assistant": "cyan",
    "call": "magenta",
    "result": "yellow",
    "opaque": "blue",
}
MOST_BARS = 60
"""A longer history is drawn with its untouched neighbours together."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with its tokens and what names it; of a run of untouched messages, the place is their first and last."""

    place: str
    kind: str
    tool: str
    tokens: BeforeAfter


def bars(drawn: Sequence[Bar], width: int, plain: bool) -> Iterator[Text]:
    """One line for each, all by one scale: where, what, tokens before and after where they differ, and the bar, solid
    for what is sent, light for what is left out, a sliver for what is too small to draw."""
    scale = max((max(bar.tokens.before, bar.tokens.after) for bar in drawn), default=0) or 1
    solid, light, sliver = ("#", ".", "|") if plain else ("█", "░", "▏")
    for bar in drawn:
        before, after = bar.tokens.before, bar.tokens.after
        label = printable(f"{bar.kind} {bar.tool}".strip(), 18)
        new = f"-> {after:>7,}" if after != before else ""
        line = Text(f"{bar.place:>9}  {label:<18} {before:>8,} {new:<10}  ")
        room = max(10, width - len(line))
        whole = round(max(before, after) * room / scale)
        size = min(whole, round(after * room / scale))
        picture = solid * size + light * (whole - size) or (sliver if before else "")
        yield line.append_text(Text(picture, style=STYLES.get(bar.kind, "")))


def message_bars(messages: Sequence[MessageSize]) -> list[Bar]:
    drawn: list[Bar] = []
    for untouched, run in groupby(messages, lambda m: m.tokens.before == m.tokens.after and m.message is not None):
        members = list(run)
        if untouched and len(members) > 1 and len(messages) > MOST_BARS:
            tokens = sum(message.tokens.before for message in members)
            place = f"{members[0].message}..{members[-1].message}"
            drawn.append(Bar(place, f"{len(members)} untouched", "", BeforeAfter(tokens, tokens)))
            continue
        for message in members:
            place = "" if message.message is None else str(message.message)
            drawn.append(Bar(place, message.kind, message.tool, message.tokens))
    return drawn


def kind_bars(kinds: Mapping[str, BeforeAfter]) -> list[Bar]:
    return [Bar("", kind, "", tokens) for kind, tokens in sorted(kinds.items(), key=lambda item: -item[1].before)]


def print_bars(console: Console, drawn: Sequence[Bar], width: int) -> None:
    for line in bars(drawn, width, console.options.ascii_only):
        console.print(line, no_wrap=True, overflow="crop")


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print notes on the figures above, each once."""
    for note in dict.fromkeys(notes):
        console.print(Text(printable(note, 1_000), style="dim"))


def legend(plain: bool) -> str:
    return "# sent  . left out" if plain else "█ sent  ░ left out"


def columns(sizes: Sequence[BeforeAfter], height: int, plain: bool) -> Iterator[str]:
    """One column for each pair, all by one scale, from the top line to the bottom one: solid for what is sent, light
    for what would have been, and `+` for what is more than that."""
    scale = max((max(size.before, size.after) for size in sizes), default=0) or 1
    solid, light = ("#", ".") if plain else ("█", "░")
    for line in reversed(range(height)):
        level = (line + 0.5) * scale / height
        yield "".join(
            (solid if size.before > level else "+") if size.after > level else light if size.before > level else " "
            for size in sizes
        ).rstrip()


# --- where a report goes ---

_MOST = 100
"""Numbers that are tried in the name of a new file."""
_TIME = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}")
"""The time at which a page was drawn."""


def print_report(
    report: T,
    draw: Callable[[Console, T], None],
    page: Callable[[T], str],
    as_json: bool,
    path: Path | None,
    values: Callable[[T], object] = values_of,
) -> None:
    """Print a report, or its values as JSON; write its page too where there is a path for it."""
    if as_json:
        print_json(values(report))
    else:
        draw(console(), report)
    if path is not None:
        print_page(path, page(report), as_json)


def sheet(title: str, heading: Node, covers: str, *inside: Node) -> str:
    """A page that is drawn now, by this version."""
    return framed(title, heading, Imprint(time.time(), version("narrows"), covers), *inside)


def print_page(path: Path, page: str, as_json: bool) -> None:
    """Write a page, and print its place."""
    with refusing():
        write(path, page)
    if not as_json:
        print(f"The page is in {printable(str(path))}")


def new_page(name: str, page: str) -> Path:
    """The file for a page that nobody named: of this name in the current folder, with a number where another page is
    in it, or in a temporary folder where nothing can be written here."""
    content = page.encode()
    try:
        for number in range(1, _MOST + 1):
            path = Path(f"{name}-{number}.html" if number > 1 else f"{name}.html")
            if path.is_file() and _TIME.sub(b"", path.read_bytes()) == _TIME.sub(b"", content):
                return path
            with suppress(FileExistsError):
                path.touch(exist_ok=False)
                return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="narrows-"), f"{name}.html")


def open_page(path: Path) -> None:
    """Show a page in the browser of this machine; where there is none, say so."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        print("narrows: there is no browser here; open the file in one elsewhere", file=sys.stderr)


def writable(name: str | None, sources: Sequence[str | Path] = ()) -> Path | None:
    """The file that a page is to be written to, if any. ValueError: it cannot be written, or is a source."""
    if name is None:
        return None
    path = Path(name)
    if name in ("", "-"):
        raise ValueError(f"--html needs the name of a file; {name or 'nothing'} is none")
    try:
        is_new = not os.path.lexists(path)
        is_source = path.exists() and any(Path(source).exists() and path.samefile(source) for source in sources)
    except OSError as error:  # a name that no file can have
        raise _cannot_write(path, error) from error
    if is_source:
        raise ValueError(f"--html {name} would write over what it is about; name another file")
    if is_new or not (path.is_char_device() or path.is_fifo()):
        write(path, "", "ab")
    if is_new:
        path.unlink()
    return path


def write(path: Path, page: str, mode: Literal["ab", "wb"] = "wb") -> None:
    try:
        with path.open(mode) as file:
            file.write(page.encode())
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> ValueError:
    return ValueError(f"cannot write {path} ({error.strerror}); name a file that can be written")
