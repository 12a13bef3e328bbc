"""The file that a page is written to.

Laws
  Whether a file that a person names can be written is tried before anything is run; what was in it is replaced when the
  page is there.
  A file that nobody named is a new one, or held this very page before, drawn at another time.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from proxy.console.output import printable, refusing
from proxy.drawing.html import Imprint, Node, framed

_MOST = 100
"""Numbers that are tried in the name of a new file."""
_TIME = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}")
"""When a page was drawn, as it says."""


def writable(name: str | None, sources: Sequence[str | Path] = ()) -> Path | None:
    """The file that a page is to be written to, if there is to be one. Raises ValueError where it cannot be written, or
    is one of the sources."""
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
    """Write the page. Raises ValueError, with a sentence, where that fails."""
    try:
        with path.open(mode) as file:
            file.write(page.encode())
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> ValueError:
    return ValueError(f"cannot write {path} ({error.strerror}); name a file that can be written")


def new_page(name: str, page: str) -> Path:
    """The page in a file of this name in the current folder, with a number where that name is in use; in a temporary
    folder where nothing can be written here. Raises ValueError where nothing can be written there either."""
    content = page.encode()
    try:
        for number in range(1, _MOST + 1):
            path = Path(f"{name}-{number}.html" if number > 1 else f"{name}.html")
            is_here = path.is_file() and path.stat().st_size == len(content)
            if is_here and _TIME.sub(b"", path.read_bytes()) == _TIME.sub(b"", content):
                path.write_bytes(content)
                return path
            with suppress(FileExistsError), path.open("xb") as file:
                file.write(content)
                return path
    except OSError:
        pass
    path = Path(tempfile.mkdtemp(prefix="narrows-"), f"{name}.html")
    write(path, page)
    return path


def print_page(path: Path, page: str, as_json: bool) -> None:
    with refusing():
        write(path, page)
    if not as_json:
        print_place(path)


def print_place(path: Path) -> None:
    print(f"The page is in {printable(str(path))}")


def open_page(path: Path) -> None:
    """Show a page in the browser of this machine; where there is none, say so."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        print("narrows: there is no browser here; open the file in one elsewhere", file=sys.stderr)


# --- a page of the lab: drawn now, by this version ---


def sheet(title: str, heading: Node, covers: str, *inside: Node) -> str:
    """The whole page."""
    return framed(title, heading, Imprint(time.time(), version("narrows"), covers), *inside)
