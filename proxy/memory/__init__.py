"""The store: the contract that every back end fulfils, and the table of back ends.

Laws
  Nothing stored here is needed to serve: where the store fails or has nothing, replay derives the same edits.
  First writer wins: what was decided for an anchor stays, and a second writer takes the decision of the first.
  Tenants share nothing, not even the knowledge that an id exists.
  Only StoreTrouble is raised, and soon. A record that cannot be read (flipped bit, cut short, other version) raises
  nothing: it counts as a miss, and as absent.
  With keys, every text is encrypted. Names, digests, sizes, times and sums are not, nor are events, which hold no text.
  A store that release 0.1 wrote is set aside and announced: a new one is begun, and nothing of the old is deleted.
"""

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pkgutil import resolve_name
from urllib.parse import parse_qsl

from proxy.config.groups.keeping import REDIS
from proxy.config.keyring import Keyring
from proxy.config.units import seconds
from proxy.memory.bills import DAY_ROWS, BillStore
from proxy.memory.decisions import (
    DEADLINE,
    PURSE_SECONDS,
    SUMMARIES,
    UNTOUCHED,
    Announce,
    DecisionStore,
    Key,
    Lease,
    Purse,
    Snapshot,
    StoreTrouble,
    conversation_id,
)
from proxy.memory.records import (
    ARTIFACTS,
    CLIENT_SUMMARIES,
    COMPRESSED,
    DAYS,
    DELETIONS,
    EVENTS,
    MESSAGES,
    ORIGINALS,
    RESERVATIONS,
    TEXT_KINDS,
    Event,
    StoredText,
    TextKind,
)
from proxy.memory.store import Store

TTL = 30 * 86_400
"""Seconds after which what was not used is deleted."""
_LONGEST = 10**9 * 86_400


def parameters(query: str, names: Collection[str]) -> Mapping[str, str]:
    """The parameters behind the question mark of a URL. Raises ValueError where one has none of these names."""
    values = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(values.keys() - set(names)):
        raise ValueError(f"there is no parameter {unknown[0]!r}: known are {', '.join(sorted(names))}")
    return values


def ttl(values: Mapping[str, str]) -> int:
    """The time to live, in seconds. Raises ValueError."""
    text = values.get("ttl", f"{TTL}s")
    with suppress(ValueError):
        if 1 <= (length := seconds(text)) < _LONGEST:
            return int(length)
    raise ValueError(f"ttl {text!r} is no duration: write 3600s, 90m, 12h or 30d")


def ttl_of(url: str) -> int:
    """The time to live that the URL of a store names, in seconds. Raises ValueError."""
    return ttl(dict(parse_qsl(url.partition("?")[2])))


def public_url(url: str) -> str:
    """The URL of a store as anybody may see it: without user, password and parameters."""
    return re.sub(r"//.*@", "//", url.partition("?")[0])


BACK_ENDS = {"sqlite": "sqlite.store:from_url"} | dict.fromkeys(REDIS, "redis.store:from_url")
"""Scheme of a URL -> what makes a Store of it, in this package, imported when it is used."""


def open_store(
    url: str, *, patience: float = DEADLINE, keyring: Keyring | None = None, announce: Announce = lambda _: None
) -> Store:
    """The store that `url` names, not yet opened. `patience`: seconds after which an answer comes too late; `keyring`:
    what its texts are encrypted with. Raises ValueError for an invalid place; the settings have refused others.
    """
    from_url: Callable[..., Store] = resolve_name(f"{__name__}.{BACK_ENDS[url.partition(':')[0]]}")
    return from_url(url, patience=patience, keyring=keyring, announce=announce)
