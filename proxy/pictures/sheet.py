"""The sheet that a page is printed on: one file of HTML that needs nothing else.

Laws
  It loads nothing, runs nothing and sends nothing: its policy forbids all but its own style, which is named by digest.
  Where it goes is opened before anything is run, so that nobody waits for a page that cannot be written; what was there
  before is replaced when the page is there.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

from proxy.pictures.markup import Markup, Node, element

Write = Callable[[str], None]
"""Writes the page."""


def sheet(title: str, *inside: Node) -> str:
    """The whole page."""
    style = (files(__package__) / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', element('main', *inside)), lang='en')}\n"


@contextmanager
def sheet_at(name: str, sources: Sequence[str | Path] = ()) -> Iterator[Write]:
    """Where a page goes. Raises ValueError, with a sentence, where it cannot be written or is one of the sources."""
    path = Path(name)
    if name == "-":
        raise ValueError("--html needs the name of a file; - is none")
    if any(_is_same(path, Path(source)) for source in sources):
        raise ValueError(f"--html {name} would write over what it is about; name another file")
    is_new = not path.exists()
    try:
        file = path.open("ab")
    except OSError as error:
        raise ValueError(f"cannot write {name} ({error.strerror}); name a file that can be written") from error
    try:
        with file:
            yield partial(_written, file, path)
    finally:
        if is_new and path.is_file() and not path.stat().st_size:
            path.unlink()


def _is_same(path: Path, source: Path) -> bool:
    return path.exists() and source.exists() and path.samefile(source)


def _written(file: BinaryIO, path: Path, page: str) -> None:
    try:
        if path.is_file():
            file.truncate(0)
        file.write(page.encode())
        file.flush()
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}); name a file that can be written") from error
