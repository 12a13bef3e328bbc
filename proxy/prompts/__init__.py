"""What summarisers are told, as versioned files: another text is another version, and stales what the old one made."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType

from policies.staleness import Kind

_WORDS = 0.7
"""Words per token. Few: names and numbers take more tokens than prose."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The instructions of one kind of summary."""

    version: str
    text: str

    def filled(self, most: int) -> str:
        """The text for an answer of at most `most` tokens."""
        return self.text.replace("{words}", str(int(most * _WORDS)))


def _read(version: str) -> Prompt:
    return Prompt(version, (files(__package__) / f"{version}.md").read_text("utf-8"))


PROMPTS: Mapping[Kind, Prompt] = MappingProxyType({"compaction": _read("compaction-1"), "history": _read("history-1")})


def prompt_of(kind: Kind, own: str = "") -> Prompt:
    """What is told for a kind of summary. Somebody's `own` text stands before what no summary is made without."""
    if not own:
        return PROMPTS[kind]
    return Prompt(f"own-{sha256(own.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}-1", f"{own}\n\n{_FRAME.text}")


_FRAME = _read("frame-1")
"""What is data and what is not, for those who bring a prompt of their own."""
