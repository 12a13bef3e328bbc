"""What code, settings and messages say of documents is there; links between documents are checked by `make lint`."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import PAGES
from tests.kit.paths import ROOT

REFERENCE = re.compile(r"([\w./-]*\w\.md)\b(?:#([\w-]+)|,? \(?\"([^\"]+)\")?")
"""A document, perhaps with an anchor, or with the heading of a section in quotation marks."""
WITHOUT = ("sessions", "generators", "digests")
"""Folders whose texts are those of other projects, or the likes of them."""


def references() -> Iterator[tuple[Path, str, str, str]]:
    """Each document that a file names, with the anchor or the heading."""
    files = [ROOT / "Makefile", ROOT / "Dockerfile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
    files += [path for folder in ("policies", "proxy", "deploy") for path in (ROOT / folder).rglob("*") if path.suffix]
    for path in files:
        if path.suffix not in (".md", ".pyc") and not set(WITHOUT) & set(path.parts):
            for reference in REFERENCE.findall(path.read_text(encoding="utf-8")):
                yield path, *reference


def headings(page: Path) -> list[str]:
    """Of its sections, as they are read."""
    return [heading.replace("`", "") for heading in re.findall(r"^#+ (.*)$", PAGES[page], re.MULTILINE)]


def anchors(page: Path) -> list[str]:
    """Those that GitHub makes of headings; the second of the same words ends with -1."""
    made: list[str] = []
    for heading in headings(page):
        anchor = re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        before = len([each for each in made if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each)])
        made.append(f"{anchor}-{before}" if before else anchor)
    return made


def test_every_document_that_a_file_names_is_there_with_its_section() -> None:
    named = list(references())
    assert len(named) > 10
    for file, name, anchor, heading in named:
        places = [place for place in (ROOT / name, file.parent / name) if place.is_file()]
        assert places, f"{file} names {name}"
        page = places[0].resolve().relative_to(ROOT.resolve())
        assert not anchor or anchor in anchors(page), f"{file} names {name}#{anchor}"
        assert not heading or heading in headings(page), f"{file} names {heading} of {name}"


@pytest.mark.parametrize("page", sorted({*PAGES} - {Path("README.md")}), ids=str)
def test_another_document_leads_to_each(page: Path) -> None:
    links = [
        (ROOT / other.parent / target).resolve()
        for other, text in PAGES.items()
        for target in re.findall(r"\]\(([^)#\s]+)", text)
        if other != page
    ]
    assert (ROOT / page).resolve() in links
