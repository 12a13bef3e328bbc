"""Texts of requests that are stored for people, where the settings want any: hidden texts, outputs, the log."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from multidict import CIMultiDict

from proxy.addons.archive.message_log import MessageLog
from proxy.addons.archive.recordings import Recorder, Recordings, Redaction
from proxy.addons.archive.texts import ArchiveMemory, Artifacts, Originals
from proxy.config import ConfigurationError, Settings
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.services import Services
from proxy.memory.opening import StoreAccess

_RECORDED = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Archive(Addon):
    """The kinds of texts that the settings want. Nothing here raises, and no request waits for it."""

    originals: Originals | None = None
    artifacts: Artifacts | None = None
    message_log: MessageLog | None = None
    recorder: Recorder | None = None

    async def planned(self, exchange: Exchange) -> None:
        is_planned = exchange.upstream_request is not None and exchange.upstream_request.planned is not None
        if is_planned and (self.message_log is not None or self.recorder is not None):
            exchange.hold_reply(self._limit)

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str]) -> None:
        request = exchange.upstream_request
        if request is None or request.planned is None or not 200 <= status < 300:
            return
        context, plan, is_first = request.planned.context, request.planned.plan, request.notes.continues is None
        key, client_request, parsed = context.key, request.client_request, context.received
        owner, dialect = client_request.sender.owner, client_request.dialect
        if self.artifacts is not None and is_first:
            self.artifacts.keep(key, owner, parsed.conversation)
        if self.message_log is not None:
            self.message_log.keep(
                key, owner, dialect, parsed, request.body, came=exchange.came_at, is_round=not is_first
            )
        if self.recorder is not None and is_first:
            self.recorder.passed(key, client_request, parsed, exchange.came_at)
        is_edited = not client_request.is_dry and request.notes.record is not None and not request.planned.is_quiet
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
        key, client_request, parsed, came = context.key, context.client_request, context.received, exchange.came_at
        if self.message_log is not None:
            self.message_log.keep_reply(key, client_request.sender.owner, client_request.dialect, parsed, reply, came)
        if self.recorder is not None:
            self.recorder.replied(key, client_request, parsed, reply, came)

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        kinds = (self.originals, self.artifacts, self.message_log)
        closing = [each.queue.close() for each in kinds if each is not None]
        await asyncio.gather(*closing, *([self.recorder.close()] if self.recorder is not None else []))

    @property
    def _limit(self) -> int:
        return self.message_log.limit if self.message_log is not None else _RECORDED


async def start(services: Services) -> Archive | None:
    """The addon; None where nothing is stored for people. Raises ConfigurationError."""
    if services.compaction is None:
        return None
    settings, access = services.settings, services.compaction.access
    memory = ArchiveMemory(access.forgets)
    kinds = (
        Originals(access) if settings.originals else None,
        Artifacts(access, memory, settings.artifacts_limit) if settings.artifacts else None,
        MessageLog(access, memory, settings.history_limit) if settings.history else None,
        _recorder(settings, settings.record, access, memory) if settings.record is not None else None,
    )
    if not any(kinds):
        return None
    archive = Archive(*kinds)
    services.parts.push_async_callback(archive.close)
    if archive.recorder is not None:
        services.compaction.deletion.delete_recordings = archive.recorder.delete
    return archive


def check(settings: Settings) -> None:
    """Raises ConfigurationError for settings with which this cannot start."""
    _redaction(settings)


def _redaction(settings: Settings) -> Redaction:
    try:
        return Redaction(settings.record_redact)
    except ValueError as error:
        raise ConfigurationError(f"record_redact: {error}") from error


def _recorder(settings: Settings, folder: Path, access: StoreAccess, memory: ArchiveMemory) -> Recorder:
    """The recorder of conversations. Raises ConfigurationError."""
    recordings = Recordings(folder, settings.keyring)
    try:
        recordings.open()
    except ValueError as error:
        raise ConfigurationError(f"record: {error}") from error
    return Recorder(recordings, _redaction(settings), settings, access, memory)
