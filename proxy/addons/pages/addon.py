from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from aiohttp import web

from proxy.addons.pages.answers import PageParts
from proxy.addons.pages.artifacts import ArtifactPages
from proxy.addons.pages.conversations import ConversationPages, Page
from proxy.addons.pages.live import LivePages
from proxy.addons.pages.login import Login
from proxy.addons.pages.pages import AdminPages
from proxy.addons.pages.summaries import SummaryPages
from proxy.errors import ApiError
from proxy.kernel.services import CompactionServices, Services

if TYPE_CHECKING:
    from proxy.addons.archive.archive import Archive


async def start(services: Services) -> AdminPages:
    """Narrows' own pages: those of conversations where something is compacted, with what other addons store."""
    gate, archive = services.opened.get("access"), services.opened.get("archive")
    pages = AdminPages(services.settings, services.telemetry, services.secret, services.controls)
    pages.recognize = gate.recognize if gate is not None else None
    pages.originals = archive.originals if archive is not None else None
    if services.compaction is not None:
        pages.conversations = _conversations(services, services.compaction, archive)
    return pages


def _conversations(services: Services, compaction: CompactionServices, archive: "Archive | None") -> ConversationPages:
    settings, access, key_limits = services.settings, compaction.access, services.opened.get("limits")
    parts = PageParts(settings, access.store, services.telemetry, services.secret, access.clock)
    originals = archive.originals if archive is not None else None
    return ConversationPages(
        parts,
        compaction.deletion,
        SummaryPages(
            parts,
            compaction.cached_store,
            compaction.maker,
            compaction.parser,
            compaction.payments,
            key_limits.limits if key_limits is not None else None,
        ),
        ArtifactPages(parts, archive.artifacts if archive is not None else None),
        LivePages(parts, Login(settings, services.secret), originals, version("narrows")),
        _log_pages(parts, archive),
    )


def _log_pages(parts: PageParts, archive: "Archive | None") -> Mapping[str, Page]:
    if archive is None or archive.message_log is None:
        return dict.fromkeys(("history", "requests", "requests/", "session", "changes"), _no_log)
    from proxy.addons.pages.log_pages import LogPages  # it reads what the archive has written

    pages = LogPages(parts)
    return {
        "history": pages.history,
        "requests": pages.requests,
        "requests/": pages.request,
        "session": pages.session,
        "changes": pages.changes,
    }


async def _no_log(request: web.BaseRequest, name: str) -> web.Response:
    raise ApiError(404, "No log is stored: `history` is not set, or `mode` is off.", "no_history")
