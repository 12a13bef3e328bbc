from proxy.addons.compress.compress import CompressApi
from proxy.kernel.services import Services


async def start(services: Services) -> CompressApi | None:
    """The compress API, where the settings want it and texts can be stored."""
    if services.compaction is None or not services.settings.compress_api:
        return None
    return CompressApi(services.settings, services.compaction.access)
