"""The official SDKs of OpenAI and Anthropic, which ask for a completion in the words of an API.

Importing an SDK takes a second or two, so a client imports it when it is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec

from policies.dialects import DEFAULT, Dialect
from policies.dialects.dialect import Writing
from policies.model.tokens import well_formed
from policies.money.prices import Usage
from policies.presets import AS_CONFIGURED, WritingOptions
from policies.text.summary_checks import End
from proxy.summaries.payments import EVERYTHING, Payment

_RETRIES = 1
"""How often an SDK tries again by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """For which conversation a model is wanted, who pays, and what is to be written."""

    model: str
    """The model of the conversation."""
    auth: Mapping[str, str] = field(repr=False)
    """The client's own headers that prove who it is."""
    owner: str = ""
    """The name of whoever has that credential."""
    payment: Payment = EVERYTHING
    dialect: str = DEFAULT
    """The API of the conversation."""
    upstream: str = ""
    """The upstream of the conversation, by its name; "" for the first one of its API."""
    writing: WritingOptions = AS_CONFIGURED
    instructions: str = ""
    """What to write over the material; empty as long as there is none yet."""
    text: str = ""
    """The material."""
    tokens: int = 0
    """The size of both."""
    most: int = 0
    """Tokens that the answer may have."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. One that is not `readable` was billed all the same."""

    text: str
    end: End
    usage: Usage | None
    readable: bool = True


class SdkClient:
    """One API through the SDK of whoever made it."""

    def __init__(self, api: Dialect, writing: Writing, base: str, http: httpx2.AsyncClient) -> None:
        # the SDK wants a key; the transport does not let it out
        options: dict[str, Any] = {"base_url": base, "api_key": "none", "http_client": http, "max_retries": _RETRIES}
        self.errors: tuple[type[Exception], ...]
        """What the SDK raises where there is no reply."""
        self._sdk: Any
        if api.provider == "anthropic":
            from anthropic import AnthropicError, AsyncAnthropic

            self.errors, self._sdk = (AnthropicError,), AsyncAnthropic(**options, open_telemetry=False)
        else:
            from openai import AsyncOpenAI, OpenAIError

            self.errors, self._sdk = (OpenAIError,), AsyncOpenAI(**options)
        self._api = api
        self._writing = writing

    async def ask(self, request: ModelRequest, model: str, headers: Mapping[str, str]) -> bytes:
        """The body of the reply. `headers` prove who asks."""
        instructions, text = well_formed(request.instructions), well_formed(request.text)
        body, *others = self._writing.bodies(model, instructions, text, request.most)
        for other in others:
            try:
                return await self._post(body, headers)
            except self.errors as error:
                if getattr(error, "status_code", 0) != 400 or getattr(error, "param", None) not in body.keys() - other:
                    raise
            body = other
        return await self._post(body, headers)

    async def _post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        options, path = {"headers": headers}, f"/v1{self._api.http.path}"
        reply: httpx2.Response = await self._sdk.post(path, cast_to=httpx2.Response, body=body, options=options)
        return reply.content

    def read(self, body: bytes) -> Completion:
        """The answer in a reply. Raises ValueError where the body is not a JSON object."""
        reply = msgspec.json.decode(body, type=dict[str, Any])
        usage = self._api.usage.read(reply.get("usage"))
        try:
            text, end = self._writing.answer(reply)
        except (msgspec.ValidationError, IndexError):
            return Completion("", "other", usage, readable=False)
        return Completion(text, end, usage)
