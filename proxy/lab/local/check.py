"""What a Narrows with these settings would do, in a few lines: nobody is asked, and nothing is made."""

from collections.abc import Iterator

from proxy.config import Settings
from proxy.store import public_url


def summary(settings: Settings) -> Iterator[str]:
    """One line for each upstream and key, and one for the rest."""
    served = f"mode {settings.mode}, preset {settings.preset}, store {public_url(settings.store)}"
    yield f"settings {settings.digest}: {served}"
    yield f"listens on {settings.host}:{settings.port} with {settings.workers} worker(s), auth {settings.auth}"
    for row in settings.upstream_rows:
        serves = f"{', '.join(row.apis) or 'all APIs'}; {', '.join(row.models) or 'all models'}"
        key = f"with the gateway's own key ({row.auth})" if row.has_key else "with the client's credential"
        yield f"upstream {row.name}: {row.url} ({serves}), {key}"
    for each in settings.keys:
        limits = ", ".join(f"{name} {value:g}" for name, value in each.limits.items())
        yield f"key {each.name}: {limits or 'no limits'}"
