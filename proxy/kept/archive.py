"""What is kept for people of the requests that pass, where the settings want any: hidden texts, outputs, the log."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from policies.conversation import Conversation
from policies.edits import Edit
from proxy.intake import Taken
from proxy.kept.artifacts import Artifacts
from proxy.kept.chronicle import Chronicle
from proxy.kept.originals import Originals, owner_of
from proxy.outgoing import Incoming
from proxy.store import Key


@dataclass(frozen=True, slots=True)
class Archive:
    """What is wanted, and where it is kept."""

    secret: bytes = field(repr=False)
    originals: Originals | None = None
    artifacts: Artifacts | None = None
    chronicle: Chronicle | None = None

    def passed(self, key: Key, incoming: Incoming, taken: Taken) -> None:
        """A request passes, as the client sent it. Never raises."""
        owner = owner_of(self.secret, incoming.credential)
        if self.artifacts is not None:
            self.artifacts.keep(key, owner, taken.conversation)
        if self.chronicle is not None:
            self.chronicle.keep(key, owner, incoming.dialect, taken)

    def hidden(self, key: Key, incoming: Incoming, conversation: Conversation, new: Sequence[Edit]) -> None:
        """These edits hide something from now on. Never raises."""
        if self.originals is not None:
            self.originals.keep(key, incoming.credential, conversation, new)

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """Write nothing more of what waits of a conversation, or of a whole tenant."""
        for each in self._wanted():
            each.forget(tenant, conversation)

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        await asyncio.gather(*(each.close() for each in self._wanted()))

    def _wanted(self) -> Iterator[Originals | Artifacts | Chronicle]:
        return (each for each in (self.originals, self.artifacts, self.chronicle) if each is not None)
