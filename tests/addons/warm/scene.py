"""A Narrows that keeps warm, before the strict provider; both go by a clock that a test moves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.addons.warm.addon import KeepWarm
from proxy.app import App
from proxy.config import Settings
from proxy.lab.provider import Received
from tests.kit.histories import Json
from tests.kit.stage import Stage

MODEL, KEY = "claude-opus-5-5", "sk-ant-api03-secret-of-a-client"
SECRET = "the lighthouse keeper's diary"
"""Stands in every prompt."""
TEXT = f"{SECRET}. " + " ".join(f"Line {at} of the notes says {at * 37 % 101}." for at in range(150))
MARK = {"cache_control": {"type": "ephemeral"}}
LIFETIME = 300.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def said(number: int = 1, text: str = TEXT) -> list[Json]:
    """The messages of so many turns; the last one of the person's has a cache mark."""
    messages: list[Json] = []
    for turn in range(number):
        words = text if not turn else f"And then, the {turn}th time?"
        last = {"type": "text", "text": words, **(MARK if turn == number - 1 else {})}
        messages += [{"role": "user", "content": [last]}, {"role": "assistant", "content": "Understood."}]
    return messages[:-1]


@dataclass(slots=True)
class Scene:
    """`asked`: what clients have sent, in their order; `headers`: those of the newest reply."""

    stage: Stage
    clock: Clock
    asked: list[bytes] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)

    async def start(self, **settings: Any) -> App:
        chosen = {
            "upstream": self.stage.upstream,
            "anthropic_upstream": self.stage.upstream,
            "port": 0,
            "store": f"sqlite:///{self.stage.path}",
            "keep_warm": "15m",
            "log_level": "error",
            **settings,
        }
        return await self.stage.stack.enter_async_context(await App.start(Settings(**chosen), clock=self.clock))

    async def ask(
        self, app: App, messages: Sequence[Json] | None = None, key: str = KEY, status: int = 200, **fields: Any
    ) -> Json:
        """The reply to a request in Anthropic's API."""
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01", **fields.pop("headers", {})}
        body: Json = {"model": MODEL, "max_tokens": 9_000, "messages": messages or said(), **fields}
        return await self.post(app, "messages", body, headers, status)

    async def post(self, app: App, path: str, body: Json, headers: dict[str, str], status: int = 200) -> Json:
        raw = json.dumps(body).encode()
        self.asked.append(raw)
        headers = {"Content-Type": "application/json", **headers}
        async with self.stage.client.post(f"{app.base_url}/{path}", data=raw, headers=headers) as reply:
            text = await reply.read()
            self.headers = reply.headers
            assert reply.status == status, text
        await app.gateway.finished()
        return {} if body.get("stream") else dict(json.loads(text))

    async def wait(self, app: App, seconds: float) -> list[Received]:
        """So many seconds pass, and each ping is sent when it is due: those that the provider has received."""
        warm, end, before = warm_of(app), self.clock.now + seconds, len(self.stage.provider.requests)
        while (due := warm.next_due()) is not None and due <= end:
            self.clock.now = max(self.clock.now, due)
            await warm.run_due(due)
        self.clock.now = end
        await warm.run_due(end)
        return list(self.stage.provider.requests)[before:]


def is_ping(received: Received) -> bool:
    return bool(received.json and received.json.get("max_tokens") == 0)


def warm_of(app: App) -> KeepWarm:
    warm = app.services.opened["warm"]
    assert isinstance(warm, KeepWarm)
    return warm


def outcomes(app: App) -> dict[str, float]:
    """What came of pings, as it is counted."""
    families = {family.name: family for family in app.telemetry.metrics.collect()}
    return {each.labels["outcome"]: each.value for each in families["narrows_pings"].samples if each.value}
