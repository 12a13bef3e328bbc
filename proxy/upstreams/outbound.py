"""A request as the row of its upstream wants it: its target, its headers, its key, and whom it trusts.

Laws
  A key of a row goes to the URL of that row and nowhere else, and no credential of a client goes with it.
  Scheme, host and port are the row's, whatever the request says.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote_plus, urlencode, urlsplit

from multidict import CIMultiDict

from policies.dialects import DIALECTS
from proxy.config import ConfigurationError, UpstreamRow
from proxy.config.routes import ACCOUNTS, CREDENTIALS, drop_sign_ins
from proxy.config.upstreams import AUTH_HEADERS, MODEL, key_in, names_no_version, usual_address
from proxy.errors import ApiError
from proxy.telemetry import Telemetry

_OF_CLIENTS = {
    *map(str.lower, (*CREDENTIALS, *ACCOUNTS)),
    *("x-goog-api-key", "cookie", "cookie2", "proxy-authorization", "chatgpt-account-id", "copilot-integration-id"),
}
"""Headers by which clients say who they are, with hyphens alone between words."""
_PARAMETERS = frozenset({"key", "api-key", "api_key", "apikey", "access_token", "token", "subscription-key", "sig"})
_NAME = re.compile(r"(?!\.+$)[^/\\%?#;\x00-\x20\x7f]{1,200}")


class Outbound:
    """The requests to one upstream, as its row wants them. Raises ConfigurationError where no key can be sent."""

    def __init__(self, row: UpstreamRow) -> None:
        self.row = row
        parts = urlsplit(row.url)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.path = parts.path
        try:
            self._key = key_in(row) if row.has_key else ""
        except ValueError as error:
            raise ConfigurationError(f"upstreams: {row.name}: {error}") from error
        self._stamp = _stamp(row.key_file) if row.key_file else None
        self.changes = bool(row.has_key or row.headers or row.query or MODEL in parts.path)
        """True where it changes anything but the place."""

    def target(self, rest: str, model: str = "") -> str:
        """The path and query of a request to what stands at `rest` below the row's URL. Raises ApiError where the URL
        needs the name of a model that no path can hold."""
        path, before = self.path, self.path.partition(MODEL)[0]
        if before != path:
            if model and not _NAME.fullmatch(model):
                raise ApiError(404, "No deployment can have the name of this model.", "no_upstream", "model")
            # what is asked without a model is not below a deployment, but beside them
            path = path.replace(MODEL, quote(model, safe="")) if model else before.rstrip("/").rpartition("/")[0]
        way, _, query = rest.partition("?")
        if self.row.query or self.row.has_key:
            replaced = {*map(str.lower, self.row.query), *(_PARAMETERS if self.row.has_key else ())}
            names = {each: unquote_plus(each.partition("=")[0]).lower() for each in query.split("&")}
            fields = [each for each in query.split("&") if each and names[each] not in replaced]
            query = "&".join((*fields, *filter(None, [urlencode(self.row.query)])))
        return (path + way or "/") + (f"?{query}" if query else "")

    def dress(self, headers: CIMultiDict[str]) -> None:
        if self.row.has_key:
            for name in [name for name in headers if re.sub("[^a-z0-9]", "-", name.lower()) in _OF_CLIENTS]:
                headers.popall(name, None)
            drop_sign_ins(headers)
        headers.update(self.row.headers)
        headers.update(self.proof)

    @property
    def proof(self) -> dict[str, str]:
        """The header with the row's own key; none where the client's credential passes."""
        if not self.row.has_key:
            return {}
        name, before = AUTH_HEADERS[self.row.auth]
        return {name: before + self._key}

    async def reread(self) -> str:
        """Take the key that its file has now, if that has changed; where it has none, the one before stays. Returns
        what is wrong with the file, "" for nothing."""
        path = self.row.key_file
        stamp = await asyncio.to_thread(_stamp, path) if path is not None else None
        if stamp == self._stamp:
            return ""
        try:
            self._key = await asyncio.to_thread(key_in, self.row)
        except ValueError as error:
            return str(error)
        self._stamp = stamp
        return ""


def trust(row: UpstreamRow, bundle: Path | None) -> ssl.SSLContext:
    """The certificates that an upstream is known by: its row's, this or the machine's. Raises ConfigurationError."""
    file = row.ca or bundle
    try:
        return _trust(file, _stamp(file) if file is not None else None)
    except OSError as error:
        name = f"ca of the upstream {row.name}" if row.ca else "ca_bundle"
        fault = "holds no certificates in PEM" if isinstance(error, ssl.SSLError) else "cannot be read"
        raise ConfigurationError(f"{name}: {file} {fault}") from error


@lru_cache(8)
def _trust(file: Path | None, _: tuple[int, int, int] | None) -> ssl.SSLContext:
    """To read the certificates of a machine takes long; a file that has changed is read again."""
    return ssl.create_default_context(cafile=file)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


# --- whether the URL of an upstream is that of its API, as far as the URL itself and the first answers tell ---
# Laws
#   It is a warning, once in a process: some APIs are below other paths than /v1.
#   No request waits for it, and no credential is sent for it.

_SECONDS = 5.0
"""For both looks together."""
_CHATS = {api.http.path for api in DIALECTS.values()}


class AddressCheck:
    def __init__(self, row: UpstreamRow, telemetry: Telemetry) -> None:
        self._row = row
        self._telemetry = telemetry
        self.is_doubtful = names_no_version(row.url) and MODEL not in row.url and not row.query

    def note(self, target: str, status: int) -> None:
        """Take notice of an answer to what was asked below the URL."""
        path = target.partition("?")[0]
        if path not in _CHATS:
            return
        if status == 404:
            remedy = f"unless that is about the model, set its address to {self._row.url}/v1"
            self._warn(f"it answered 404 at {path}", remedy)
        self.is_doubtful = self.is_doubtful and status >= 400

    async def look(self, ask: Callable[[str], Awaitable[int]]) -> None:
        """Find out whether the API is elsewhere. `ask`: the status of the answer to a GET without a credential."""
        if usual := usual_address(self._row.url):
            self._warn(f"the API of this host is at {usual}", f"set its address to {usual}")
        if not self.is_doubtful or self._row.has_key or self._row.headers:  # which go along with all that is asked
            return
        with suppress(ApiError, TimeoutError):  # a request will say it
            async with asyncio.timeout(_SECONDS):
                if await ask("/models") == 404 and await ask("/v1/models") in (200, 401, 403):
                    self._warn("it has no models here, but below /v1", f"set its address to {self._row.url}/v1")

    def _warn(self, fault: str, remedy: str) -> None:
        self.is_doubtful = False  # once is enough
        self._telemetry.log.warning(
            "upstream_address", upstream=self._row.name, url=self._row.url, reason=fault, remedy=remedy
        )
