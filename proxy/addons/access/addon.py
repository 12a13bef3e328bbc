from proxy.addons.access.gate import Gate
from proxy.addons.access.registry import KeyRegistry
from proxy.config import ConfigurationError
from proxy.kernel.services import Services
from proxy.memory.breaker import GuardedStore
from proxy.memory.opening import start_store


async def start(services: Services) -> Gate | None:
    """The entrance, with the keys of the settings and, where any count, those of the store; None where nobody is looked
    at. Raises ConfigurationError where a reload would forget these."""
    settings, telemetry, parts = services.settings, services.telemetry, services.parts
    if settings.auth == "passthrough":
        registry = KeyRegistry(settings, None)
        return Gate(settings, registry, services.secret) if settings.trusted_proxies else None
    store = services.store or await start_store(settings, telemetry, parts)
    registry = KeyRegistry(settings, GuardedStore(store, telemetry, "keys_store"))
    parts.push_async_callback(registry.close)
    before = services.before.get("access")
    is_reload = isinstance(before, Gate) and before.takes_keys
    if not await registry.open() and is_reload:
        raise ConfigurationError("store: it does not answer, so its keys would be forgotten; reload again once it does")
    return Gate(settings, registry, services.secret)
