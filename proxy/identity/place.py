"""Where a request comes from: this machine, or another one.

Law: a web page of another site, opened on this machine, is not this machine.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from aiohttp import web
from yarl import URL

from proxy.config.upstreams import is_public

_FORWARDING = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-envoy-external-address"),
)
"""Headers by which proxies say that they ask for somebody else; few of them set all."""


def is_local(request: web.BaseRequest) -> bool:
    """Whether the client is on this machine, and not a proxy that speaks for somebody else."""
    if not request.remote or any(name in request.headers for name in _FORWARDING):
        return False
    return _is_loopback(request.remote)


@lru_cache
def _is_loopback(remote: str) -> bool:
    address = ip_address(remote)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_here(request: web.BaseRequest, host: str) -> bool:
    """Whether the client is on this machine and has addressed it as such, or by the name that Narrows listens at
    (`host`): a web page of another site, whose host name resolves to this machine, has not."""
    if not is_local(request):
        return False
    if (authority := request.headers.get("Host")) is None:  # no browser
        return True
    name, address = _place(authority)
    return address is not None or name in ("localhost", host)


def asks_here(request: web.BaseRequest, host: str) -> bool:
    """Whether the client is on this machine and means it. Browsers give images, scripts and frames no Origin, but say
    that another site wants them: by whether they load, it would learn what there is."""
    headers = request.headers
    origin, (_, address) = headers.get("Origin"), _place(headers.get("Host", ""))
    is_asked = headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    is_asked = is_asked or headers.get("Sec-Fetch-Dest") == "document"  # somebody follows a link
    # by an address of this machine for others, a proxy here was asked
    is_asked = is_asked and (address is None or address.is_loopback or address.is_unspecified)
    return is_here(request, host) and is_asked and (origin is None or origin.partition("://")[2] == request.host)


def has_other_name(request: web.BaseRequest, host: str) -> bool:
    """Whether a client on this machine asks by a host name that is not served: a web page may have it resolve to this
    machine."""
    return is_local(request) and not is_public(host) and not is_here(request, host)


@lru_cache
def _place(authority: str) -> tuple[str, IPv4Address | IPv6Address | None]:
    """The host of a Host header, and its address where it is one."""
    try:
        name = URL.build(scheme="http", authority=authority).host or ""
    except ValueError:
        return "", None
    try:
        return name, ip_address(name)
    except ValueError:
        return name, None
