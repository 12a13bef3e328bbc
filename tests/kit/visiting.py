"""The pages below /narrows/ of a Narrows on a stage, as a person's client asks for them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yarl import URL

from proxy.app import App
from tests.kit.stage import Stage

BEHIND = ("X-Forwarded-For", "203.0.113.9")
"""With it nobody is on this machine, and the credential alone names the tenant."""
NOBODY = ("Authorization", "")


@dataclass(frozen=True, slots=True)
class Page:
    """What was answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def code(self) -> str:
        return str(self.error["code"])


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Somebody elsewhere with this credential."""
    return BEHIND, ("Authorization", f"Bearer {token}")


async def page(
    stage: Stage, app: App, place: str, *headers: tuple[str, str], method: str = "GET", data: Any = None
) -> Page:
    """What is answered to a request for this place below /narrows/, its encoding untouched."""
    url = URL(app.base_url.removesuffix("/v1") + "/narrows/" + place, encoded=True)
    given = {"Authorization": "Bearer k", **dict(headers)}  # as the requests of a stage have it
    sent = {name: value for name, value in given.items() if value}
    async with stage.client.request(method, url, headers=sent, data=data) as reply:
        return Page(reply.status, dict(reply.headers), await reply.read())


async def conversation_page(
    stage: Stage, app: App, method: str, place: str, *headers: tuple[str, str], data: Any = None
) -> Page:
    """What is answered to a request for this place below the conversations."""
    return await page(stage, app, "conversations" + place, *headers, method=method, data=data)
