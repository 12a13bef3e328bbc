"""Addresses of APIs: what cannot be one, and what is probably not meant."""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from policies.dialects import DIALECTS
from proxy.config.errors import refused

_BASES: Mapping[str, str] = {
    "api.openai.com": "/v1",
    "api.anthropic.com": "/v1",
    "openrouter.ai": "/api/v1",
    "api.groq.com": "/openai/v1",
    "api.mistral.ai": "/v1",
    "api.together.xyz": "/v1",
    "api.x.ai": "/v1",
    "localhost:11434": "/v1",  # Ollama
    "127.0.0.1:11434": "/v1",
    "localhost:1234": "/v1",  # LM Studio
    "127.0.0.1:1234": "/v1",
}
"""Below which path the API is, where a host has only one."""
_ENDPOINTS = (*(api.http.path for api in DIALECTS.values()), "/completions", "/embeddings")
_BARE = re.compile(
    r"(localhost|[a-z0-9-]{1,40}(\.[a-z0-9-]{1,40}){1,5}|[a-z0-9-]{1,40}(?=:))(:\d{1,5})?(/[\w./-]{0,40})?"
)
"""An address without a scheme, and nothing that might be a key: whoever reads the error sees it."""
_LOCAL = re.compile(r"localhost|[\d.]+|[^.]+")
"""Hosts that hardly speak TLS: this machine, addresses, and names without a domain."""
_VERSION = re.compile(r"/v\d")


def whole_url(value: str) -> str:
    """The URL of an API, without its last slash. Raises what pydantic makes a refusal of."""
    value = value.strip()
    if _BARE.fullmatch(value):
        raise refused("url", f"give a whole URL, with its scheme: {_with_scheme(value)}")
    try:
        parts = urlsplit(value)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets, or of the port
        is_whole = False
    if not is_whole or not value.isascii() or not value.isprintable() or " " in value:
        raise refused("url", "give a whole URL such as https://api.openai.com/v1")
    if parts.username is not None or parts.password is not None:
        raise refused("url", "leave user and password out; credentials are sent in headers")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise refused("url", "leave out everything from ? or # on")
    value = value.rstrip("/")
    if end := next((each for each in _ENDPOINTS if value.endswith(each)), ""):
        raise refused("url", f"leave out {end} at its end: clients add that")
    if value.endswith("/v1/v1"):
        raise refused("url", "leave out one of the two /v1 at its end")
    return value


Url = Annotated[str, AfterValidator(whole_url)]


def _with_scheme(bare: str) -> str:
    """The whole URL that was probably meant by one without a scheme."""
    scheme = "http" if _LOCAL.fullmatch(bare.partition("/")[0].partition(":")[0]) else "https"
    url = f"{scheme}://{bare}".rstrip("/")
    return usual_address(url) or url


def usual_address(url: str) -> str:
    """Where the API of this host is, if that is known and is elsewhere; else ""."""
    parts = urlsplit(url)
    base = _BASES.get(parts.netloc.lower().removesuffix(":443"))
    return f"{parts.scheme}://{parts.netloc}{base}" if base not in (None, parts.path) else ""


def names_no_version(url: str) -> bool:
    """Whether nothing in its path is a version such as /v1, as in the address of nearly every API."""
    return _VERSION.search(urlsplit(url).path) is None


def is_local(url: str) -> bool:
    """Whether a URL is of this machine, or of a network of one's own: by its address, or a name without a domain."""
    host = (urlsplit(url).hostname or "").removesuffix(".")
    try:
        return ip_address(host).is_private  # of loopback, too
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal", ".lan"))
