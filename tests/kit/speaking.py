"""Agents on the official SDK of each API, whose bytes are recorded; and requests of which every byte is the test's."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from policies.dialects import DIALECTS
from policies.tools import RECALL
from proxy.app import App
from tests.kit.apis import Api
from tests.kit.histories import Json
from tests.kit.recorder import RecordingTransport
from tests.kit.stage import Exchange, Stage


@dataclass(frozen=True, slots=True)
class Heard:
    """One reply, as the SDK read it."""

    api: Api
    raw: bytes
    headers: Mapping[str, str]
    reply: Any

    @property
    def prefix(self) -> str:
        return self.headers["x-narrows-prefix"]

    @property
    def mode(self) -> str:
        return self.headers["x-narrows-mode"]

    @property
    def finish(self) -> str:
        return self.api.finish(self.reply)

    @property
    def text(self) -> str:
        content = self.message()["content"] or ""
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    @property
    def calls(self) -> list[str]:
        """The names of the tools called."""
        return [made["function"]["name"] for made in self.message().get("tool_calls", ())]

    def message(self) -> Json:
        """The reply as an agent keeps it."""
        entries = self.api.entries_of(self.reply)
        (message, *more) = self.api.messages_in({self.api.history: entries}) or [{"role": "assistant", "content": None}]
        assert more == []
        return {"content": None, **message, "native": entries}


class Speaker:
    """An agent on the official SDK of an API."""

    def __init__(self, api: Api, sdk: Any, recorder: RecordingTransport) -> None:
        self.api = api
        self._endpoint = api.endpoint(sdk)
        self._recorder = recorder

    @property
    def request_body(self) -> bytes:
        """The newest request as the SDK wrote it."""
        return self._recorder.request_body

    async def ask(self, messages: Sequence[Json], stream: bool = False, **fields: Any) -> Heard:
        """The reply to a request in which the recall tool is Narrows' own."""
        heard = await self.hear(messages, stream, **fields)
        assert RECALL.encode() not in heard.raw
        return heard

    async def hear(self, messages: Sequence[Json], stream: bool = False, **fields: Any) -> Heard:
        """The reply to a request."""
        headers = fields.pop("extra_headers", None)
        body = self.api.body(messages, **fields)
        # past the SDK's look at each block, which takes longer than all the rest
        history = {self.api.history: body[self.api.history]}
        body = {**body, self.api.history: [], "extra_body": history, "extra_headers": headers}
        reply = await (self._streamed(body) if stream else self._endpoint.create(**body))
        return Heard(self.api, bytes(self._recorder.reply_body), self._recorder.reply_headers, reply)

    async def _streamed(self, body: Json) -> Any:
        async with self._endpoint.stream(**body, **self.api.streams) as stream:
            events = [event async for event in stream]
            reply = await self.api.final_reply(stream, events[-1])
        self.api.judge(bytes(self._recorder.reply_body))
        return reply

    async def grow(self, session: Sequence[Json], **fields: Any) -> list[Heard]:
        """Every request of a session, in its order."""
        ends = [i for i, message in enumerate(session) if message["role"] == "assistant"]
        return [await self.hear(session[:end], **fields) for end in ends]


async def post(stage: Stage, app: App, api: Api, body: bytes, *headers: tuple[str, str]) -> Exchange:
    """Send these bytes as a request of an API. Summaries are asked for by Narrows itself, and meanwhile."""
    form = DIALECTS[api.dialect]
    head = {"Content-Type": "application/json", **form.http.auth("k"), **dict(headers)}
    async with stage.client.post(f"{app.base_url}{form.http.path}", data=body, headers=head) as reply:
        text = await reply.read()
    received = next(each for each in reversed(stage.provider.requests) if each.headers["User-Agent"] != "narrows")
    return Exchange(body, received.body, reply.status, dict(reply.headers), text)


@asynccontextmanager
async def speaking(api: Api, url: str) -> AsyncIterator[Speaker]:
    """An agent whose base URL leads to `url`, which ends with /v1."""
    recorder = RecordingTransport()
    http = httpx2.AsyncClient(transport=recorder, trust_env=False, timeout=60)
    async with api.sdk(base_url=url.removesuffix("/v1") + api.base, http_client=http) as sdk:
        yield Speaker(api, sdk, recorder)
