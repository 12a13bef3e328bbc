"""The documents of the repository: what stands in each of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.kit.paths import ROOT

PAGES: Mapping[Path, str] = {
    path.relative_to(ROOT): path.read_text(encoding="utf-8")
    for pattern in ("*.md", "[!.]*/*.md", "[!.]*/*/*.md", "proxy/console/reference/*.md", "proxy/**/README.md")
    for path in sorted(ROOT.glob(pattern))
}
"""All of them, by their places."""
README, CHANGELOG = PAGES[Path("README.md")], PAGES[Path("CHANGELOG.md")]
POLICIES, DEPLOY, TESTS = (PAGES[Path(folder, "README.md")] for folder in ("policies", "deploy", "tests"))
MANUAL: Mapping[Path, str] = {
    page: text for page, text in PAGES.items() if page.parts[0] == "proxy" and page.name == "README.md"
}
"""The manual of the proxy but for its reference."""
BEHAVIOURS, FAULTS = PAGES[Path("tests/BEHAVIOURS.md")], PAGES[Path("tests/FAULTS.md")]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: where it stands, its marks, its text."""

    page: Path
    line: int
    marks: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> list[Block]:
    """All blocks in this language."""
    return [
        Block(page, text[: at.start()].count("\n") + 1, at[1].strip(), dedent(at[2]))
        for page, text in PAGES.items()
        for at in re.finditer(rf"^ *```{language}\b(.*)\n((?:.*\n)*?) *```$", text, re.MULTILINE)
    ]


def toml_blocks(page: str) -> list[str]:
    """The examples of settings in it."""
    return re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
