"""What is kept for people of the requests that pass, where the settings want any: hidden texts, outputs, the log."""

import asyncio
from dataclasses import dataclass

from multidict import CIMultiDict

from proxy.addons.archive.message_log import MessageLog
from proxy.addons.archive.recorder import Recorder
from proxy.addons.archive.texts import Artifacts, Originals
from proxy.kernel.addons import Addon, Exchange

_RECORDED = 16 * 2**20
"""Bytes of a reply that is recorded, at most."""


@dataclass(frozen=True, slots=True)
class Archive(Addon):
    """The kinds of texts that the settings want. Nothing here raises, and no request waits for it."""

    originals: Originals | None = None
    artifacts: Artifacts | None = None
    message_log: MessageLog | None = None
    recorder: Recorder | None = None

    async def planned(self, exchange: Exchange) -> None:
        if self._stores_replies(exchange):
            exchange.hold_reply(self._limit)

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str]) -> None:
        """Store what is new in a request, as the client sent it, what was sent, and what is hidden from now on."""
        sent = exchange.upstream_request
        if sent is None or sent.planned is None or not 200 <= status < 300:
            return
        context, plan, is_first = sent.planned.context, sent.planned.plan, sent.notes.continues is None
        key, client_request, parsed = context.key, sent.client_request, context.received
        owner, dialect = client_request.sender.owner, client_request.dialect
        if self.artifacts is not None and is_first:
            self.artifacts.keep(key, owner, parsed.conversation)
        if self.message_log is not None:
            self.message_log.keep(key, owner, dialect, parsed, sent.body, is_round=not is_first)
        if self.recorder is not None and is_first:
            self.recorder.passed(key, client_request, parsed)
        is_edited = not client_request.is_dry and sent.notes.record is not None and not sent.planned.is_quiet
        if self.originals is not None and is_edited:
            self.originals.keep(key, client_request.sender.owner, context.conversation, plan.new)

    async def finished(self, exchange: Exchange) -> None:
        """Store the reply to a request, over all its rounds, if it is whole."""
        reply, last = exchange.reply, exchange.rounds[-1] if exchange.rounds else None
        planned = last.request.planned if last is not None and 200 <= last.status < 300 else None
        is_over = exchange.reader is not None and not exchange.reader.pending
        if planned is None or reply is None or reply.size > self._limit or not is_over:
            return
        context = planned.context
        key, client_request, parsed = context.key, context.client_request, context.received
        if self.message_log is not None:
            self.message_log.keep_reply(key, client_request.sender.owner, client_request.dialect, parsed, reply)
        if self.recorder is not None:
            self.recorder.replied(key, client_request, parsed, reply)

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        kinds = (self.originals, self.artifacts, self.message_log)
        closing = [each.queue.close() for each in kinds if each is not None]
        await asyncio.gather(*closing, *([self.recorder.close()] if self.recorder is not None else []))

    @property
    def _limit(self) -> int:
        """Bytes of a reply that is stored, at most."""
        return self.message_log.limit if self.message_log is not None else _RECORDED

    def _stores_replies(self, exchange: Exchange) -> bool:
        wants_replies = self.message_log is not None or self.recorder is not None
        return wants_replies and exchange.upstream_request is not None and exchange.upstream_request.planned is not None
