"""The file that a page is written to.

Law: whether it can be written is tried before anything is run; what was there before is replaced when the page is
there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal


def writable(name: str | None, sources: Sequence[str | Path] = ()) -> Path | None:
    """The file that a page is to be written to, if there is to be one. Raises ValueError where it cannot be written, or
    is one of the sources."""
    if name is None:
        return None
    path = Path(name)
    if name in ("", "-"):
        raise ValueError(f"--html needs the name of a file; {name or 'nothing'} is none")
    if path.exists() and any(Path(source).exists() and path.samefile(source) for source in sources):
        raise ValueError(f"--html {name} would write over what it is about; name another file")
    is_new = not path.exists()
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
        raise ValueError(f"cannot write {path} ({error.strerror}); name a file that can be written") from error
