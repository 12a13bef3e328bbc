"""Which error describes each way in which an upstream gives no reply."""

import aiohttp

from proxy.errors import ApiError

_TROUBLES: tuple[tuple[type[Exception], int, str, str], ...] = (
    (aiohttp.ConnectionTimeoutError, 504, "upstream_timeout", "did not take a connection in time; is it up?"),
    (TimeoutError, 504, "upstream_timeout", "took the request but stayed silent; see `read_timeout`."),
    (aiohttp.ClientProxyConnectionError, 502, "proxy_unreachable", "is behind a proxy that does not answer."),
    (aiohttp.ClientHttpProxyError, 502, "proxy_refused", "is behind a proxy that refused to connect."),
    (aiohttp.ClientConnectorDNSError, 502, "upstream_unknown", "has no address; check the setting `upstream`."),
    (
        aiohttp.ClientConnectorCertificateError,
        502,
        "upstream_certificate",
        "has a certificate that is not trusted; set `ca_bundle`?",
    ),
    (aiohttp.ClientSSLError, 502, "upstream_tls", "does not speak TLS here; check http or https in `upstream`."),
    (aiohttp.ClientConnectorError, 502, "upstream_unreachable", "cannot be reached; is it up?"),
    (aiohttp.ClientResponseError, 502, "upstream_garbled", "sent something that is not HTTP."),
    (Exception, 502, "upstream_cut", "closed the connection before it answered."),
)
"""The first that fits counts. No text of the error itself: it may quote what it was sending."""


def trouble(error: Exception, host: str) -> ApiError:
    """The error that a client receives when no reply came from the upstream."""
    status, code, text = next(row[1:] for row in _TROUBLES if isinstance(error, row[0]))
    return ApiError(status, f"The upstream {host} {text}", code)
