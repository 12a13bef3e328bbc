"""The documents of the repository: what stands in each of them."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.kit.paths import ROOT

PAGES: Mapping[Path, str] = {
    path.relative_to(ROOT): path.read_text(encoding="utf-8")
    for pattern in ("*.md", "[!.]*/*.md", "[!.]*/*/*.md")
    for path in sorted(ROOT.glob(pattern))
}
"""All of them, by their places."""
README, CHANGELOG = PAGES[Path("README.md")], PAGES[Path("CHANGELOG.md")]
PROXY, POLICIES, DEPLOY, TESTS = (
    PAGES[Path(folder, "README.md")] for folder in ("proxy", "policies", "deploy", "tests")
)
BEHAVIOURS, FAULTS = PAGES[Path("tests/BEHAVIOURS.md")], PAGES[Path("tests/FAULTS.md")]


def toml_blocks(page: str = PROXY) -> list[str]:
    """The examples of settings in it."""
    return re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
