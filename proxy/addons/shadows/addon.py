from proxy.addons.shadows.shadows import ShadowParts, Shadows
from proxy.kernel.services import Services


async def start(services: Services) -> Shadows | None:
    """What asks again at sampled requests; None where none is sampled."""
    if services.store is None or services.compaction is None or not services.settings.agree_share:
        return None
    parts = ShadowParts(
        settings=services.settings,
        upstreams=services.upstreams,
        price_book=services.price_book,
        store=services.store,
        audit_log=services.compaction.audit_log,
        telemetry=services.telemetry,
        forgets=services.compaction.access.forgets,
        pressure=services.admission.pressure,
    )
    shadows = Shadows(parts)
    services.parts.push_async_callback(shadows.close)
    return shadows
