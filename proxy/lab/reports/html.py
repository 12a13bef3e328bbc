"""The sheet that a page is printed on: one file of HTML that needs nothing else.

Laws
  It loads nothing, runs nothing and sends nothing: its policy forbids all but its own style, which is named by digest.
  Whether it can be written is tried before anything is run; what was there before is replaced when the page is there.
"""

import base64
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Literal

from proxy.lab.reports.markup import Markup, Node, element


def sheet(title: str, *inside: Node) -> str:
    """The whole page."""
    style = (files("proxy.lab.reports") / "page.css").read_text(encoding="utf-8")
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


def place(name: str, sources: Sequence[str | Path] = ()) -> Path:
    """Where a page is to go. Raises ValueError where that cannot be written, or is one of the sources."""
    path = Path(name)
    if name in ("", "-"):
        raise ValueError(f"--html needs the name of a file; {name or 'nothing'} is none")
    if any(_is_same(path, Path(source)) for source in sources):
        raise ValueError(f"--html {name} would write over what it is about; name another file")
    is_new = not path.exists()
    if is_new or not (path.is_char_device() or path.is_fifo()):
        _open(path, "ab")
    if is_new:
        path.unlink()
    return path


def printed(path: Path, page: str) -> None:
    """Write the page. Raises ValueError, with a sentence, where that fails."""
    _open(path, "wb", page.encode())


def _open(path: Path, mode: Literal["ab", "wb"], content: bytes = b"") -> None:
    try:
        with path.open(mode) as file:
            file.write(content)
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}); name a file that can be written") from error


def _is_same(path: Path, source: Path) -> bool:
    return path.exists() and source.exists() and path.samefile(source)
