"""A script that runs in Redis, and the command that runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1

Argument = str | bytes | int | float
Command = tuple[Argument, ...]


@dataclass(frozen=True)
class Script:
    """A script, known to the server by its digest once it has run there."""

    text: str

    @cached_property
    def digest(self) -> str:
        """As Redis names it."""
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def on(self, keys: Sequence[str], *arguments: Argument) -> Command:
        """The command that runs it where it is known."""
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)
