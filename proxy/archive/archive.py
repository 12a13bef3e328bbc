"""What is kept for people of the requests that pass, where the settings want any: hidden texts, outputs, the log."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.model.conversation import Conversation
from policies.model.edits import Edit
from proxy.archive.artifacts import Artifacts
from proxy.archive.message_log import MessageLog
from proxy.archive.originals import Originals
from proxy.identity import owner_of
from proxy.requests import ClientRequest, ParsedRequest
from proxy.store import Key


@dataclass(frozen=True, slots=True)
class Archive:
    """What is wanted, and where it is kept."""

    secret: bytes = field(repr=False)
    originals: Originals | None = None
    artifacts: Artifacts | None = None
    chronicle: MessageLog | None = None

    def passed(self, key: Key, client_request: ClientRequest, taken: ParsedRequest) -> None:
        """A request passes, as the client sent it. Never raises."""
        owner = owner_of(self.secret, client_request.credential)
        if self.artifacts is not None:
            self.artifacts.keep(key, owner, taken.conversation)
        if self.chronicle is not None:
            self.chronicle.keep(key, owner, client_request.dialect, taken)

    def hidden(self, key: Key, client_request: ClientRequest, conversation: Conversation, new: Sequence[Edit]) -> None:
        """These edits hide something from now on. Never raises."""
        if self.originals is not None:
            self.originals.keep(key, client_request.credential, conversation, new)

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        kinds = (self.originals, self.artifacts, self.chronicle)
        await asyncio.gather(*(each.queue.close() for each in kinds if each is not None))
