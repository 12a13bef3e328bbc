"""The page at `/`: what answers here, and how a client is pointed at it.

Law: it is for everybody, so it says nothing of this Narrows: no version, no upstream, no figure, no setting.
"""

import re
from collections.abc import Iterator, Mapping
from textwrap import fill

from aiohttp import web

from proxy.admin.answers import PRIVATE
from proxy.admin.targets import READ, allow_only
from proxy.config.clients import CLIENTS, DEFAULT_ADDRESS
from proxy.drawing.frame import section
from proxy.drawing.html import document, element, policy

_HOST = re.compile(r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")
"""What can stand in a line to paste; no other Host is repeated."""
_WHAT = (
    "This is Narrows, a proxy for the APIs of language models. It makes long conversations shorter on their way, and "
    "passes on everything else as it is."
)
_HOW = "Point a client here with one of these lines. Its API key stays the same, unless you were given one for here."
_COLUMNS = 80
_CLIENTS = ("openai", "anthropic", "codex")
_NEXT = {
    "/narrows/": "what was saved, for those who may see it",
    "/healthz": "whether it runs",
}


def welcome(request: web.BaseRequest) -> web.Response:
    """The page: for a browser as HTML, else as text. Raises ApiError."""
    allow_only(request, READ)
    address = _address(request.headers)
    if "text/html" in request.headers.get("Accept", ""):
        kind, text = "text/html", _html(address)
    else:
        kind, text = "text/plain", _plain(address)
    headers = {
        "Content-Type": f"{kind}; charset=utf-8",
        "Content-Security-Policy": f"{policy()}; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept",
        **PRIVATE,
    }
    return web.Response(body=text.encode(), headers=headers)


def _address(headers: Mapping[str, str]) -> str:
    """By which address the client has asked here."""
    host = headers.get("Host", "")
    if not _HOST.fullmatch(host):
        return DEFAULT_ADDRESS
    return f"{'https' if headers.get('X-Forwarded-Proto', '').lower() == 'https' else 'http'}://{host}"


def _lines(address: str) -> Iterator[tuple[str, str]]:
    """Whose line to paste, and the line."""
    for name in _CLIENTS:
        for line in CLIENTS[name].lines(address, {}):
            yield CLIENTS[name].about, line


def _plain(address: str) -> str:
    pasted = "".join(f"\n# {about}\n{line}\n" for about, line in _lines(address))
    pages = "".join(f"{address}{path}  {what}\n" for path, what in _NEXT.items())
    return f"{fill(_WHAT, _COLUMNS)}\n\n{fill(_HOW, _COLUMNS)}\n{pasted}\n{pages}"


def _html(address: str) -> str:
    pasted = [(element("p", f"{about}:"), element("pre", line)) for about, line in _lines(address)]
    pages = [element("p", element("a", path, href=path), f": {what}") for path, what in _NEXT.items()]
    clients = section("Point a client here", element("p", _HOW), pasted)
    return document("Narrows", element("h1", "Narrows"), element("p", _WHAT), clients, section("Pages", pages))
