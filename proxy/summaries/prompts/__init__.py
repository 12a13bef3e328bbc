"""What summarisers are told, as versioned files: another text is another version, and stales what the old one made."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import get_args

from policies.model.summary_record import Kind
from policies.tools import ToolKind

_WORDS = 0.7
"""Words per token. Few: names and numbers take more tokens than prose."""
_LETTERS = 4
"""Characters per token."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The instructions of one kind of summary."""

    version: str
    text: str

    def filled(self, most: int) -> str:
        """The text for an answer of at most `most` tokens."""
        limits = {"words": int(most * _WORDS), "characters": most * _LETTERS}
        text = self.text
        for name, limit in limits.items():
            text = text.replace(f"{{{name}}}", str(limit))
        return text

    def most(self, filled: str) -> int:
        """How many words or characters the instructions allow, if they are these, filled in; else 0."""
        placed = next(name for name in ("{words}", "{characters}") if name in self.text)
        before, _, after = self.text.partition(placed)
        if not (filled.startswith(before) and filled.endswith(after)):
            return 0
        limit = filled[len(before) : len(filled) - len(after)]
        return int(limit) if limit.isdecimal() else 0


def _read(version: str) -> Prompt:
    return Prompt(version, (files(__package__) / f"{version}.md").read_text("utf-8"))


PROMPTS: Mapping[Kind, Prompt] = MappingProxyType({"compaction": _read("compaction-1"), "history": _read("history-1")})
DIGESTS: Mapping[ToolKind, Prompt] = MappingProxyType({kind: _read(f"digest-{kind}-1") for kind in get_args(ToolKind)})
"""What is told for a digest, by the kind of the tool."""


def prompt_of(kind: Kind, own: str = "") -> Prompt:
    """What is told for a kind of summary. Somebody's `own` text stands before what no summary is made without."""
    if not own:
        return PROMPTS[kind]
    return Prompt(f"own-{sha256(own.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}-1", f"{own}\n\n{_FRAME.text}")


_FRAME = _read("frame-1")
"""What is data and what is not, for those who bring a prompt of their own."""
