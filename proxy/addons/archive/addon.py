from pathlib import Path

from proxy.addons.archive.archive import Archive
from proxy.addons.archive.message_log import MessageLog
from proxy.addons.archive.recorder import Recorder, RecorderOptions
from proxy.addons.archive.recordings import Recordings
from proxy.addons.archive.redaction import Redaction
from proxy.addons.archive.texts import Artifacts, Originals
from proxy.config import ConfigurationError, Settings
from proxy.kernel.services import Services
from proxy.memory import ttl_of
from proxy.memory.opening import StoreAccess


async def start(services: Services) -> Archive | None:
    """What is stored for people, as far as it is to be; None where nothing is. Raises ConfigurationError."""
    if services.compaction is None:
        return None
    settings, access = services.settings, services.compaction.access
    kinds = (
        Originals(access) if settings.originals else None,
        Artifacts(access, settings.artifacts_limit) if settings.artifacts else None,
        MessageLog(access, settings.history_limit) if settings.history else None,
        _recorder(settings, settings.record, access) if settings.record is not None else None,
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


def _recorder(settings: Settings, folder: Path, access: StoreAccess) -> Recorder:
    """What records conversations in files. Raises ConfigurationError."""
    recordings = Recordings(folder, settings.keyring)
    options = RecorderOptions(settings.record_share, settings.record_limit, ttl_of(settings.store), access.secret)
    try:
        recordings.open()
    except ValueError as error:
        raise ConfigurationError(f"record: {error}") from error
    recorder = Recorder(recordings, _redaction(settings), options, access.telemetry)
    access.forgets.register(recorder.forget)
    return recorder
