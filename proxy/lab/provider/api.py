"""What an API is to the built-in provider: its rules, its prompts, its replies. One package each, one row in APIS."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from multidict import MultiMapping

from proxy.lab.provider.answers import Json, Reply, Say, Turn
from proxy.lab.provider.prompt import Grammar
from proxy.lab.provider.rules import Check, Violation

Kept = Callable[[str], Json | None]
"""What the provider has kept of this client's earlier replies, by its id."""


def as_it_is(asked: Json, _: Kept) -> Json:
    """The request: it refers to nothing."""
    return asked


def any_headers(_: Json, __: MultiMapping[str]) -> None:
    """Nothing depends on the headers."""


def nothing(_: Turn, __: Json) -> dict[str, Json]:
    """Nothing is kept."""
    return {}


class Api(Grammar, Protocol):
    """One API, beside how its prompts are read."""

    PATH: str
    """Where it answers."""
    COUNTING: str
    """Where it counts the tokens of a request; empty where it does not."""
    COUNTED: dict[str, Any]
    """What it says besides their number."""
    CHECKS: tuple[Check, ...]
    """What a request must keep to."""
    COUNT_CHECKS: tuple[Check, ...]
    """What a request must keep to whose tokens are counted."""

    def headless(self, asked: Json, headers: MultiMapping[str], /) -> Violation | None:
        """A header that the request must carry, and this one does not."""

    def overflow(self, tokens: int, window: int, /) -> Violation:
        """The prompt does not fit the window."""

    def refused(self, violation: Violation, /) -> bytes:
        """The body of an error reply."""

    def resolved(self, asked: Json, kept: Kept, /) -> Json | Violation:
        """The request, with all that it refers to in it; why that cannot be."""

    def kept(self, turn: Turn, resolved: Json, /) -> dict[str, Json]:
        """What later requests may refer to, or clients ask for, by its id."""

    def meant(self, say: Say, asked: Json, /) -> Say:
        """What the model says to such a request where a script has it say this."""

    def reply(self, turn: Turn, /) -> Reply:
        """What the model says: one object, or a stream where the request asks for one."""

    def choices_of(self, asked: Json, /) -> int:
        """How many answers a request asks for at once."""

    def answers(self, messages: Sequence[Json], /) -> list[Say]:
        """What the model says in a recorded session, one answer after the other."""

    def answered(self, body: Json, /) -> int:
        """How many answers the history of a request holds."""
