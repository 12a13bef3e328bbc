from proxy.addons.shadows.shadows import Shadows
from proxy.kernel.services import Services


async def start(services: Services) -> Shadows | None:
    """What asks again at sampled requests; None where none is sampled."""
    if services.store is None or services.compaction is None or not services.settings.agree_share:
        return None
    shadows = Shadows(services, services.store, services.compaction.audit_log)
    services.parts.push_async_callback(shadows.close)
    return shadows
