"""The official SDKs of OpenAI and Anthropic: how a completion is requested from each API, and how it is read.

Importing an SDK takes a second or two, so a client imports it when it is made.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx2
import msgspec

from policies.dialects.usage import ANTHROPIC_MESSAGES, OPENAI_CHAT, OPENAI_RESPONSES, UsageNames
from policies.model.tokens import well_formed
from policies.money.prices import Usage
from policies.presets import AS_CONFIGURED, WritingOptions
from policies.text.summary_checks import End
from proxy.summaries.payments import EVERYTHING, Payment

_RETRIES = 1
"""How often an SDK tries again by itself."""
_SLACK = 1.25
"""How many times the tokens wanted may be generated: an answer that is a little too long is still complete."""
_THINKING = 8_192
"""Tokens more for a model that thinks before it answers, as thoughts count. Tokens that are not used cost nothing."""
_COMPLETION_LIMITED = re.compile(r"(?:ft:)?(?:o\d|gpt-(?:[5-9]|\d\d)|codex-)", re.I)
"""Names, without a vendor before them, of OpenAI's models that think: they take `max_completion_tokens` and refuse
`max_tokens`, which compatible APIs take."""
_THINKS = re.compile(
    r"reason|think|gpt-oss|qwq|qwen3|magistral|-r1|deepseek-v|kimi-k|glm-\d|minimax-m|grok-[3-9]|gemini-(?:2\.5|[3-9])"
    r"|claude-(?!3|2|instant)",
    re.I,
)
"""Others that may think. Anthropic's older models do not, and refuse so high a limit."""
_THOUGHT = re.compile(r"\s*<(think(?:ing)?)>", re.I)

Json = Mapping[str, Any]


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
    dialect: str = "openai_chat"
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


class SdkClient(ABC):
    """One API through its SDK."""

    dialect: ClassVar[str]
    provider: ClassVar[str] = "openai"
    usage: ClassVar[UsageNames]
    key_header: ClassVar[tuple[str, str]] = ("authorization", "Bearer ")
    """The header that proves who asks, and what stands in it before an API key."""
    listing: ClassVar[str] = ""
    """What the URL of the list of models ends with, so that all of them come at once."""
    errors: tuple[type[Exception], ...]
    """What the SDK raises where there is no reply."""

    @abstractmethod
    def __init__(self, base: str, http: httpx2.AsyncClient) -> None: ...

    @staticmethod
    def versioned(url: str) -> str:
        """A base_url as people give it to clients of this API, with the version in its path."""
        return url

    @abstractmethod
    async def ask(self, request: ModelRequest, model: str, headers: Mapping[str, str]) -> bytes:
        """The body of the reply. `headers` prove who asks."""

    @staticmethod
    def limit(most: int, model: str) -> int:
        """Tokens that may be generated, and paid for, for an answer of `most`."""
        return _limit(most, model, is_completion_limited(model))

    def read(self, body: bytes) -> Completion:
        """The answer in a reply. Raises ValueError where the body is not a JSON object."""
        reply = msgspec.json.decode(body, type=dict[str, Any])
        usage = self.usage.read(reply.get("usage"))
        try:
            text, end = self._answer(reply)
        except (msgspec.ValidationError, IndexError):
            return Completion("", "other", usage, readable=False)
        return Completion(text, end, usage)

    @abstractmethod
    def _answer(self, reply: Json) -> tuple[str, End]:
        """Raises msgspec.ValidationError, IndexError where the reply has none."""


class _OpenAIClient(SdkClient):
    def __init__(self, base: str, http: httpx2.AsyncClient) -> None:
        from openai import AsyncOpenAI, BadRequestError, OpenAIError

        self.errors = (OpenAIError,)
        self._bad_request = BadRequestError
        # the SDK wants a key; the transport does not let it out
        self._sdk = AsyncOpenAI(base_url=base, api_key="none", http_client=http, max_retries=_RETRIES)


class _ChatMessage(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class _ChatChoice(msgspec.Struct):
    message: _ChatMessage
    finish_reason: str | None = None


class ChatClient(_OpenAIClient):
    """OpenAI's chat completions."""

    dialect = "openai_chat"
    usage = OPENAI_CHAT

    def __init__(self, base: str, http: httpx2.AsyncClient) -> None:
        super().__init__(base, http)
        self._create = self._sdk.chat.completions.with_raw_response.create  # which imports the rest

    async def ask(self, request: ModelRequest, model: str, headers: Mapping[str, str]) -> bytes:
        """The body of the reply. Where the name of a model does not say which limit it takes, its refusal does."""
        fields = ["max_tokens", "max_completion_tokens"]
        if is_completion_limited(model):
            fields.reverse()
        try:
            return await self._ask(request, model, headers, fields[0])
        except self._bad_request as error:
            if error.param != fields[0]:
                raise
        return await self._ask(request, model, headers, fields[1])

    async def _ask(self, request: ModelRequest, model: str, headers: Mapping[str, str], field: str) -> bytes:
        reply = await self._create(
            model=model,
            messages=[
                {"role": "system", "content": well_formed(request.instructions)},
                {"role": "user", "content": well_formed(request.text)},
            ],
            extra_body={field: _limit(request.most, model, field == "max_completion_tokens")},
            extra_headers=headers,
        )
        return reply.http_response.content

    def _answer(self, reply: Json) -> tuple[str, End]:
        choice = msgspec.convert(reply.get("choices"), list[_ChatChoice])[0]
        message, finish = choice.message, (choice.finish_reason or "stop").lower()
        parts = message.content if isinstance(message.content, list) else [{"text": message.content}]
        text = _joined(parts)
        if message.refusal or finish == "content_filter":
            return text, "refusal"
        if message.tool_calls or message.function_call or finish in ("tool_calls", "function_call"):
            return text, "calls"
        if finish == "length":
            return text, "length"
        if not text and (message.content or message.reasoning or message.reasoning_content):
            return text, "reasoning"
        return text, "stop" if finish in ("stop", "end_turn", "eos", "stop_sequence") else "other"


class _Item(msgspec.Struct):
    type: str = "message"
    content: list[dict[str, Any]] | None = None


class ResponsesClient(_OpenAIClient):
    """OpenAI's responses: some of its models are offered there alone."""

    dialect = "openai_responses"
    usage = OPENAI_RESPONSES
    _CUT: ClassVar[Mapping[str, End]] = {"max_output_tokens": "length", "content_filter": "refusal"}

    def __init__(self, base: str, http: httpx2.AsyncClient) -> None:
        super().__init__(base, http)
        self._create = self._sdk.responses.with_raw_response.create

    async def ask(self, request: ModelRequest, model: str, headers: Mapping[str, str]) -> bytes:
        """The body of the reply, which the provider is asked not to store."""
        reply = await self._create(
            model=model,
            instructions=well_formed(request.instructions),
            input=well_formed(request.text),
            max_output_tokens=_limit(request.most, model, is_completion_limited(model)),
            store=False,
            extra_headers=headers,
        )
        return reply.http_response.content

    def _answer(self, reply: Json) -> tuple[str, End]:
        output = msgspec.convert(reply.get("output"), list[_Item])
        parts = [part for item in output if item.type == "message" for part in item.content or ()]
        text = _joined([part for part in parts if part.get("type") == "output_text"])
        if reply.get("status", "completed") != "completed":
            details = reply.get("incomplete_details")
            return text, self._CUT.get(str(details.get("reason")), "other") if isinstance(details, dict) else "other"
        if any(part.get("type") == "refusal" for item in output for part in item.content or ()):
            return text, "refusal"
        if any(item.type.endswith("_call") for item in output):
            return text, "calls"
        return text, "reasoning" if output and not text else "stop"


class MessagesClient(SdkClient):
    """Anthropic's messages."""

    dialect = "anthropic_messages"
    provider = "anthropic"
    usage = ANTHROPIC_MESSAGES
    key_header = ("x-api-key", "")
    listing = "?limit=1000"
    _ENDS: ClassVar[Mapping[str, End]] = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "calls",
        "refusal": "refusal",
    }

    def __init__(self, base: str, http: httpx2.AsyncClient) -> None:
        from anthropic import AnthropicError, AsyncAnthropic

        self.errors = (AnthropicError,)
        sdk = AsyncAnthropic(
            base_url=base.removesuffix("/v1"),  # which this SDK puts into the path
            api_key="none",
            http_client=http,
            max_retries=_RETRIES,
            open_telemetry=False,
        )
        self._create = sdk.messages.with_raw_response.create

    @staticmethod
    def versioned(url: str) -> str:
        return url.removesuffix("/v1") + "/v1"  # people leave it out for clients that add it themselves

    async def ask(self, request: ModelRequest, model: str, headers: Mapping[str, str]) -> bytes:
        reply = await self._create(
            model=model,
            system=well_formed(request.instructions),
            messages=[{"role": "user", "content": well_formed(request.text)}],
            max_tokens=_limit(request.most, model),
            extra_headers=headers,
        )
        return reply.http_response.content

    def _answer(self, reply: Json) -> tuple[str, End]:
        blocks = msgspec.convert(reply.get("content"), list[dict[str, Any]])
        text = _joined([block for block in blocks if block.get("type") == "text"])
        if any(block.get("type") in ("tool_use", "server_tool_use") for block in blocks):
            return text, "calls"
        end = self._ENDS.get(str(reply.get("stop_reason")), "other")
        return text, "reasoning" if end == "stop" and blocks and not text else end


CLIENTS: Mapping[str, type[SdkClient]] = {
    client.dialect: client for client in (ChatClient, ResponsesClient, MessagesClient)
}
"""The client for each API in which a conversation may be."""
KEY_CLIENTS: Mapping[str, type[SdkClient]] = {"openai": ChatClient, "anthropic": MessagesClient}
"""The client for each provider that is asked with a key of its own."""


def is_completion_limited(model: str) -> bool:
    return _COMPLETION_LIMITED.match(model.rpartition("/")[2]) is not None


def _limit(most: int, model: str, thinks: bool = False) -> int:
    """Tokens that may be generated for an answer of `most`, by a model that thinks for certain or by its name."""
    return int(most * _SLACK) + (_THINKING if thinks or _THINKS.search(model) else 0)


def _joined(parts: list[dict[str, Any]]) -> str:
    """Their text without the thoughts that some models write before it; empty where nothing follows them."""
    text = "".join(str(part.get("text") or "") for part in parts)
    opened = _THOUGHT.match(text)
    if opened is None:
        return text.strip()
    return text[opened.end() :].partition(f"</{opened[1]}>")[2].strip()
