"""A client's credential, as the APIs carry it, and what is made of that.

Laws
  A credential that has the shape of an OAuth or subscription token is no API key; every other string counts as one.
  Names of tenants and owners are keyed hashes; nothing is made of a key of this gateway but its name.
"""

import hmac
import math
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from hashlib import sha256

from aiohttp import web
from cachetools import LRUCache

from proxy.config.routes import ACCOUNTS, CREDENTIALS, SIGN_INS, VERSIONS, words_in
from proxy.config.rules import KEY_SHAPE

_LONGEST_KEY = 1_000
"""Characters of a credential whose hash is remembered."""
_AUTH_HEADERS = (*CREDENTIALS, *ACCOUNTS, *VERSIONS)
_TOKENS = (
    *("sk-ant-oat", "sk-ant-ort", "sk-ant-sid"),  # Anthropic: Claude Code, claude.ai
    "eyJ",  # JSON web tokens: Sign in with ChatGPT (Codex), Entra ID, and whoever else signs people in
    "ya29.",  # Google
    *("gho_", "ghu_", "ghs_", "ghr_", "tid="),  # GitHub, and Copilot, whose own tokens begin with `tid=`
    "hf_oauth_",  # Hugging Face
    *("sk-sp-", "sk-kimi-", "sk-cp-"),  # keys of coding subscriptions: Alibaba, Kimi, MiniMax
)
"""How credentials begin that stand for a person's sign-in or subscription."""
_SIGNED = ("aws4-", "digest ", "dpop ", "hawk ", "negotiate ", "signature ")
"""How an Authorization header begins that is good for one request, or for one connection."""
_SIGN_IN = ("chatgpt-account-id", "copilot-integration-id")
"""Headers that go with a subscription, whatever the credential looks like."""
KEY_HEADER = "x-narrows-key"
"""Where a key of this gateway stands beside a credential for the upstream."""
STANDS_FOR = "\0"
"""How begins what stands for a key, or for a person: no header can hold it."""


def received_credential(request: web.BaseRequest) -> str:
    """The client's credential, as the APIs carry it; "" for none. Several are joined, one on each line: one of them may
    be the same for everybody, and the upstream decides which of them it looks at."""
    headers = request.headers
    scheme, _, token = headers.get(CREDENTIALS[0], "").partition(" ")
    values = (token.strip() or scheme, *(headers.get(name, "") for name in CREDENTIALS[1:]))
    return "\n".join(dict.fromkeys(filter(None, values)))


def auth_of(request: web.BaseRequest, *, has_key: bool) -> dict[str, str]:
    """The headers by which the upstream knows who asks. A key of this gateway (`has_key`) is not for the upstream."""
    headers = {name: request.headers[name] for name in _AUTH_HEADERS if name in request.headers}
    if has_key:
        headers = {name: value for name, value in headers.items() if not KEY_SHAPE.search(value)}
    return headers | _sign_ins(request)


def _sign_ins(request: web.BaseRequest) -> dict[str, str]:
    """The headers in which a sign-in has to stand, with that word alone: no other is about who asks."""
    words = {
        name: ",".join(word for word in words_in(request.headers.getall(name, ())) if word.startswith(start))
        for name, start in SIGN_INS
    }
    return {name: value for name, value in words.items() if value}


def is_plain_key(request: web.BaseRequest) -> bool:
    """True where the credential is a plain API key, so far as its shape tells, or there is none. What it is used for
    beside the client's own requests is then for its owner to pay, and not a use of somebody's subscription."""
    headers = request.headers
    if headers.get("Authorization", "").lower().startswith(_SIGNED) or any(name in headers for name in _SIGN_IN):
        return False
    words = received_credential(request).replace('"', " ").split()  # whatever space an upstream takes before the token
    return not _sign_ins(request) and not any(word.startswith(_TOKENS) for word in words)


def is_allowed(credential: str, digests: Collection[str]) -> bool:
    """True where the SHA-256 of one of the keys in the credential is among these; `*` stands for all. Whoever has a key
    of this gateway is let in by that."""
    if credential.startswith(STANDS_FOR):
        return True
    return "*" in digests or not {each.lower() for each in digests}.isdisjoint(digests_of(credential))


def digests_of(credential: str) -> Collection[str]:
    """The SHA-256 of each of the keys in a credential."""
    return {sha256(key.encode("utf-8", "surrogateescape")).hexdigest() for key in credential.split("\n") if key}


def owner_of(secret: bytes, credential: str) -> str:
    return hash_of(secret, f"originals\0{credential}")[:24]


def name_of(secret: bytes, person: str) -> str:
    """A name for a person whom a gateway in front names in words that a tenant cannot have."""
    return "~" + hash_of(secret, f"person\0{person}")[:24]


def hash_of(secret: bytes, text: str) -> str:
    return (_keyed_hash if len(text) <= _LONGEST_KEY else _keyed_hash.__wrapped__)(secret, text)


@lru_cache(maxsize=4_096)  # to compute it lets go of the interpreter, for which the event loop then may have to wait
def _keyed_hash(secret: bytes, text: str) -> str:
    return hmac.digest(secret, text.encode("utf-8", "surrogateescape"), "sha256").hex()


# --- what upstreams last answered to each credential through this process, by a keyed hash of the credential ---

_OWNERS = 65_536
_LIMITED, _LONGEST_LIMIT = 60.0, 86_400.0
"""Seconds in which nothing is asked after a 429 that does not say how long, and at most."""


class CredentialStates:
    """By owner; and by owner and upstream, as a credential that one upstream knows may be unknown to another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accepted: LRUCache[str, bool] = LRUCache(_OWNERS)
        self._blocked_until: LRUCache[str, float] = LRUCache(_OWNERS)

    def note(self, owner: str, status: int, retry_after: float | None = None, upstream: str = "") -> None:
        """Remember an answer. `retry_after`: the seconds that it asks for."""
        for name in {owner, _at(owner, upstream)}:
            if 200 <= status < 300:
                self._accepted[name] = True
                if self._blocked_until.get(name) == math.inf:
                    del self._blocked_until[name]
            elif status in (401, 403):
                self._accepted.pop(name, None)
                self._blocked_until[name] = math.inf
            elif status == 429:
                until = self._clock() + min(_LIMITED if retry_after is None else retry_after, _LONGEST_LIMIT)
                self._blocked_until[name] = max(until, self._blocked_until.get(name, 0.0))

    def is_accepted(self, owner: str, upstream: str = "") -> bool:
        """True where the upstream took the credential, and has not refused it since."""
        return _at(owner, upstream) in self._accepted

    def is_refused(self, owner: str, upstream: str = "") -> bool:
        return self._blocked_until.get(_at(owner, upstream)) == math.inf

    def is_blocked(self, owner: str) -> bool:
        return self._blocked_until.get(owner, 0.0) > self._clock()


def _at(owner: str, upstream: str) -> str:
    return f"{owner} {upstream}" if upstream else owner


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds that a Retry-After header asks for; None where it has none, or a date."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None
