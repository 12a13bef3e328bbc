"""What is kept for people of the requests that pass, where the settings want any: hidden texts, outputs, the log."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from policies.dialects import Reply
from policies.model.conversation import Conversation
from policies.model.edits import Edit
from proxy.addons.archive.message_log import MessageLog
from proxy.addons.archive.recorder import Recorder
from proxy.addons.archive.replies import LoggedReply
from proxy.addons.archive.texts import Artifacts, Originals
from proxy.memory import Key
from proxy.memory.conversation import ParsedRequest
from proxy.requests import ClientRequest, UpstreamRequest

_RECORDED = 16 * 2**20
"""Bytes of a reply that is recorded, at most."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The kinds of texts that the settings want. Nothing here raises, and no request waits for it."""

    originals: Originals | None = None
    artifacts: Artifacts | None = None
    message_log: MessageLog | None = None
    recorder: Recorder | None = None

    def passed(self, key: Key, upstream_request: UpstreamRequest, parsed: ParsedRequest) -> None:
        """Store what is new in a request, as the client sent it, and what was sent."""
        client_request, is_first = upstream_request.client_request, upstream_request.continues is None
        owner, dialect = client_request.owner, client_request.dialect
        if self.artifacts is not None and is_first:
            self.artifacts.keep(key, owner, parsed.conversation)
        if self.message_log is not None:
            self.message_log.keep(key, owner, dialect, parsed, upstream_request.body, is_round=not is_first)
        if self.recorder is not None and is_first:
            self.recorder.passed(key, client_request, parsed)

    def reader(self, reply: Reply) -> Reply:
        """A reader of a reply that may be stored."""
        if self.message_log is None and self.recorder is None:
            return reply
        return LoggedReply(reply, self.message_log.limit if self.message_log is not None else _RECORDED)

    def replied(self, key: Key, client_request: ClientRequest, parsed: ParsedRequest, reply: Reply) -> None:
        """Store the reply to a request, over all its rounds, if it is whole."""
        if not isinstance(reply, LoggedReply) or reply.pending:
            return
        if self.message_log is not None:
            self.message_log.keep_reply(key, client_request.owner, client_request.dialect, parsed, reply)
        if self.recorder is not None:
            self.recorder.replied(key, client_request, parsed, reply)

    def hidden(self, key: Key, client_request: ClientRequest, conversation: Conversation, new: Sequence[Edit]) -> None:
        """Store what these edits hide from now on."""
        if self.originals is not None:
            self.originals.keep(key, client_request.owner, conversation, new)

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        kinds = (self.originals, self.artifacts, self.message_log)
        closing = [each.queue.close() for each in kinds if each is not None]
        await asyncio.gather(*closing, *([self.recorder.close()] if self.recorder is not None else []))
