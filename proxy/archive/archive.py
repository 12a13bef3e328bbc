"""What is kept for people of the requests that pass, where the settings want any: hidden texts, outputs, the log."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from policies.model.conversation import Conversation
from policies.model.edits import Edit
from proxy.archive.message_log import MessageLog
from proxy.archive.texts import Artifacts, Originals
from proxy.requests import ClientRequest, ParsedRequest
from proxy.store import Key


@dataclass(frozen=True, slots=True)
class Archive:
    """The kinds of texts that the settings want. Nothing here raises, and no request waits for it."""

    originals: Originals | None = None
    artifacts: Artifacts | None = None
    message_log: MessageLog | None = None

    def passed(self, key: Key, client_request: ClientRequest, parsed: ParsedRequest) -> bool:
        """Store what is new in a request, as the client sent it; whether any of it is to be kept."""
        if self.artifacts is not None:
            self.artifacts.keep(key, client_request.owner, parsed.conversation)
        if self.message_log is not None:
            self.message_log.keep(key, client_request.owner, client_request.dialect, parsed)
        return self.artifacts is not None or self.message_log is not None

    def hidden(self, key: Key, client_request: ClientRequest, conversation: Conversation, new: Sequence[Edit]) -> None:
        """Store what these edits hide from now on."""
        if self.originals is not None:
            self.originals.keep(key, client_request.credential, conversation, new)

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        kinds = (self.originals, self.artifacts, self.message_log)
        await asyncio.gather(*(each.queue.close() for each in kinds if each is not None))
