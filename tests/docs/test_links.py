"""Every link leads somewhere."""

import re
from pathlib import Path

import pytest

from tests.docs.documents import PAGES
from tests.kit.paths import ROOT


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page.parent / name).resolve() if name else (ROOT / page).resolve()
        assert path.exists(), target
        assert path.is_relative_to(ROOT.resolve()), target
        assert not anchor or anchor in _anchors(path.read_text(encoding="utf-8")), target
