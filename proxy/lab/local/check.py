"""What a Narrows with these settings would do, in a few lines: nobody is asked, and nothing is made."""

import re
from collections.abc import Iterator

from proxy.config import KeyRow, Settings

_LIMITS = ("rpm", "tpm", "concurrency", "usd_per_day")


def summary(settings: Settings) -> Iterator[str]:
    """One line for each upstream and key, and one for the rest."""
    store = re.sub(r"//.*@", "//", settings.store.partition("?")[0])  # it may have passwords
    yield f"settings {settings.digest}: mode {settings.mode}, preset {settings.preset}, store {store}"
    yield f"listens on {settings.host}:{settings.port} with {settings.workers} worker(s), auth {settings.auth}"
    for row in settings.upstream_rows:
        serves = f"{', '.join(row.apis) or 'all APIs'}; {', '.join(row.models) or 'all models'}"
        key = f"with the gateway's own key ({row.auth})" if row.has_key else "with the client's credential"
        yield f"upstream {row.name}: {re.sub('//.*@', '//', row.url)} ({serves}), {key}"
    for each in settings.keys:
        yield f"key {each.name}: {_limits(each)}"


def _limits(key: KeyRow) -> str:
    """What a key may use."""
    limits = [f"{name} {getattr(key, name):g}" for name in _LIMITS if getattr(key, name) is not None]
    return ", ".join(limits) or "no limits"
