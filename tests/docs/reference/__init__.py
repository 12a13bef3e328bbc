"""The reference pages of the manual, written from the code: `make reference`.

settings, commands, metrics    what the code says of itself
headers, errors                tables with a meaning for each name that stands in the code; test_reference.py holds them
                               complete
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs.reference import commands, errors, headers, metrics, settings
from tests.kit.paths import ROOT

FOLDER = ROOT / "proxy" / "console" / "reference"
WRITERS: Mapping[Path, Callable[[], str]] = {
    FOLDER / f"{writer.__name__.rpartition('.')[2]}.md": writer.page
    for writer in (settings, commands, headers, metrics, errors)
}
"""What writes each page."""
