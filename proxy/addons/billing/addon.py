from proxy.addons.billing.billing import Billing
from proxy.kernel.prepare import Holdout
from proxy.kernel.services import Services


async def start(services: Services) -> Billing | None:
    """What bills requests and summaries; None where nothing is compacted."""
    if services.compaction is None:
        return None
    access, settings = services.compaction.access, services.settings
    holdout, prices = Holdout(settings.holdout, services.secret), services.price_book.prices
    billing = Billing(access.store, services.telemetry, access.forgets, holdout, settings.preset, prices)
    services.parts.push_async_callback(billing.close)
    services.billed.append(billing.summary)
    return billing
