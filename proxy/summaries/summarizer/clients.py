"""The official SDKs of OpenAI and Anthropic: how each is asked, and how its answer is read.

Importing an SDK takes a second or two, so it is done where one is made.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import httpx2
import msgspec

from policies.dialects.anthropic_messages import usage as messages
from policies.dialects.openai_chat import usage as chat
from policies.dialects.openai_responses import usage as responses
from policies.model.tokens import well_formed
from policies.money.prices import Usage
from policies.presets import AS_SET, Writing
from policies.text.summary_checks import End
from proxy.summaries.summarizer.transport import FAULTS

_RETRIES = 1
"""How often an SDK asks again by itself."""
_SLACK = 1.25
"""How many times the tokens wanted may be written: what is a little long is still whole."""
_THINKING = 8_192
"""Tokens more for a model that thinks before it answers, as that counts. A limit: what is not used costs nothing."""
_LIMITED_ANEW = re.compile(r"(?:ft:)?(?:o\d|gpt-(?:[5-9]|\d\d)|codex-)", re.I)
"""Models of OpenAI's that take `max_completion_tokens` and refuse `max_tokens`. Compatible APIs know the latter."""
_THINKS = re.compile(
    r"reason|think|gpt-oss|qwq|qwen3|magistral|-r1|deepseek-v|kimi-k|glm-\d|minimax-m|grok-[3-9]|gemini-(?:2\.5|[3-9])"
    r"|claude-(?!3|2|instant)",
    re.I,
)
"""Others that may think. Older ones of Anthropic's do not, and take no such limit."""
_THOUGHT = re.compile(r"\s*<(think(?:ing)?)>", re.I)


@dataclass(frozen=True, slots=True)
class Asking:
    """What is to be written: `instructions` over the material `text`, in at most `most` tokens.

    `dialect` and `model` are the conversation's, for those who are named none, be it by the preset's `writing`; `auth`
    the client's own headers.
    """

    instructions: str
    text: str
    most: int
    model: str
    auth: Mapping[str, str]
    dialect: str = "openai_chat"
    writing: Writing = AS_SET


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it was read. What is not `readable` as one was billed all the same."""

    text: str
    end: End
    usage: Usage | None
    readable: bool = True


class Client(Protocol):
    """An SDK."""

    faults: tuple[type[Exception], ...]
    """What is raised where it gets no answer."""

    async def ask(self, asking: Asking, model: str, proof: Mapping[str, str]) -> bytes:
        """The body of the reply. `proof` are the headers with which to prove who asks."""

    def read(self, body: bytes) -> Reply:
        """The answer in it; raises ValueError where it is no JSON of this API at all."""


class _ChatMessage(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class _Choice(msgspec.Struct):
    message: _ChatMessage
    finish_reason: str | None = None


class Chat:
    """OpenAI's chat completions."""

    def __init__(self, base: str, http: httpx2.AsyncClient) -> None:
        from openai import AsyncOpenAI, BadRequestError, OpenAIError

        self.faults: tuple[type[Exception], ...] = (OpenAIError, *FAULTS)
        self._bad_request = BadRequestError
        # the SDK wants a key; the transport does not let it out
        sdk = AsyncOpenAI(base_url=base, api_key="none", http_client=http, max_retries=_RETRIES)
        self._create = sdk.chat.completions.with_raw_response.create  # which imports the rest

    @staticmethod
    def proof(key: str) -> Mapping[str, str]:
        """The headers of a key."""
        return {"authorization": f"Bearer {key}"}

    async def ask(self, asking: Asking, model: str, proof: Mapping[str, str]) -> bytes:
        """The body of the reply. Where a name does not say how the model wants its limit, the refusal does."""
        anew = bool(_LIMITED_ANEW.match(_bare(model)))
        try:
            return await self._ask(asking, model, proof, anew)
        except self._bad_request as error:
            if error.param != _field(anew):
                raise
        return await self._ask(asking, model, proof, not anew)

    async def _ask(self, asking: Asking, model: str, proof: Mapping[str, str], anew: bool) -> bytes:
        reply = await self._create(
            model=model,
            messages=[
                {"role": "system", "content": well_formed(asking.instructions)},
                {"role": "user", "content": well_formed(asking.text)},
            ],
            extra_body={_field(anew): _limit(asking.most, anew or _thinks(model))},
            extra_headers=proof,
        )
        return reply.http_response.content

    def read(self, body: bytes) -> Reply:
        """The answer in a reply."""
        found = msgspec.json.decode(body, type=dict[str, Any])
        usage = chat.read_usage(found.get("usage"))
        try:
            choice = msgspec.convert(found.get("choices"), list[_Choice])[0]
        except (msgspec.ValidationError, IndexError):
            return Reply("", "other", usage, readable=False)
        message = choice.message
        parts = message.content if isinstance(message.content, list) else [{"text": message.content}]
        text = _aloud("".join(str(part.get("text") or "") for part in parts))
        return Reply(text, _chat_end(choice, text), usage)


class Responses:
    """OpenAI's responses: some of its models are to be had there alone."""

    def __init__(self, base: str, http: httpx2.AsyncClient) -> None:
        from openai import AsyncOpenAI, OpenAIError

        self.faults: tuple[type[Exception], ...] = (OpenAIError, *FAULTS)
        sdk = AsyncOpenAI(base_url=base, api_key="none", http_client=http, max_retries=_RETRIES)
        self._create = sdk.responses.with_raw_response.create

    @staticmethod
    def proof(key: str) -> Mapping[str, str]:
        """The headers of a key."""
        return Chat.proof(key)

    async def ask(self, asking: Asking, model: str, proof: Mapping[str, str]) -> bytes:
        """The body of the reply, which the provider is not to keep. All models that think do so within the limit."""
        reply = await self._create(
            model=model,
            instructions=well_formed(asking.instructions),
            input=well_formed(asking.text),
            max_output_tokens=_limit(asking.most, bool(_LIMITED_ANEW.match(_bare(model))) or _thinks(model)),
            store=False,
            extra_headers=proof,
        )
        return reply.http_response.content

    def read(self, body: bytes) -> Reply:
        """The answer in a reply."""
        found = msgspec.json.decode(body, type=dict[str, Any])
        usage = responses.read_usage(found.get("usage"))
        try:
            output = msgspec.convert(found.get("output"), list[_Item])
        except msgspec.ValidationError:
            return Reply("", "other", usage, readable=False)
        parts = [part for item in output if item.type == "message" for part in item.content or ()]
        text = _aloud("".join(str(part.get("text") or "") for part in parts if part.get("type") == "output_text"))
        return Reply(text, _response_end(found, output, text), usage)


class _Item(msgspec.Struct):
    type: str = "message"
    content: list[dict[str, Any]] | None = None


_CUT: Mapping[str, End] = {"max_output_tokens": "length", "content_filter": "refusal"}


def _response_end(found: Mapping[str, Any], output: list[_Item], text: str) -> End:
    details = found.get("incomplete_details")
    if found.get("status", "completed") != "completed":
        return _CUT.get(str(details.get("reason")), "other") if isinstance(details, dict) else "other"
    if any(part.get("type") == "refusal" for item in output for part in item.content or ()):
        return "refusal"
    if any(item.type.endswith("_call") for item in output):
        return "calls"
    return "reasoning" if output and not text else "stop"


def _chat_end(choice: _Choice, text: str) -> End:
    message, finish = choice.message, (choice.finish_reason or "stop").lower()
    if message.refusal or finish == "content_filter":
        return "refusal"
    if message.tool_calls or message.function_call or finish in ("tool_calls", "function_call"):
        return "calls"
    if finish == "length":
        return "length"
    if not text and (message.content or message.reasoning or message.reasoning_content):
        return "reasoning"
    return "stop" if finish in ("stop", "end_turn", "eos", "stop_sequence") else "other"


class Messages:
    """Anthropic's messages."""

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

        self.faults: tuple[type[Exception], ...] = (AnthropicError, *FAULTS)
        sdk = AsyncAnthropic(
            base_url=base.removesuffix("/v1"),  # which this SDK puts into the path
            api_key="none",
            http_client=http,
            max_retries=_RETRIES,
            open_telemetry=False,
        )
        self._create = sdk.messages.with_raw_response.create

    @staticmethod
    def proof(key: str) -> Mapping[str, str]:
        """The headers of a key."""
        return {"x-api-key": key}

    async def ask(self, asking: Asking, model: str, proof: Mapping[str, str]) -> bytes:
        """The body of the reply."""
        reply = await self._create(
            model=model,
            system=well_formed(asking.instructions),
            messages=[{"role": "user", "content": well_formed(asking.text)}],
            max_tokens=_limit(asking.most, _thinks(model)),
            extra_headers=proof,
        )
        return reply.http_response.content

    def read(self, body: bytes) -> Reply:
        """The answer in a reply."""
        found = msgspec.json.decode(body, type=dict[str, Any])
        usage = messages.read_usage(found.get("usage"))
        try:
            blocks = msgspec.convert(found.get("content"), list[dict[str, Any]])
        except msgspec.ValidationError:
            return Reply("", "other", usage, readable=False)
        text = _aloud("".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text"))
        end = self._ENDS.get(str(found.get("stop_reason")), "other")
        if any(block.get("type") in ("tool_use", "server_tool_use") for block in blocks):
            end = "calls"
        return Reply(text, "reasoning" if end == "stop" and blocks and not text else end, usage)


Kind = type[Chat] | type[Responses] | type[Messages]


@dataclass(frozen=True, slots=True)
class Spoken:
    """How whoever a conversation's API belongs to is asked: by `provider`, and with what in that very API."""

    provider: str
    kind: Kind


SPOKEN: Mapping[str, Spoken] = {
    "openai_chat": Spoken("openai", Chat),
    "openai_responses": Spoken("openai", Responses),
    "anthropic_messages": Spoken("anthropic", Messages),
}
CLIENTS: Mapping[str, tuple[str, Kind]] = {
    "openai": ("openai_chat", Chat),
    "anthropic": ("anthropic_messages", Messages),
}
"""What those with a key of their own are asked with: the API, and the client that speaks it."""


def _bare(model: str) -> str:
    """The name of a model without the vendor before it."""
    return model.rpartition("/")[2]


def _field(anew: bool) -> str:
    """What the limit is called."""
    return "max_completion_tokens" if anew else "max_tokens"


def _thinks(model: str) -> bool:
    return bool(_THINKS.search(model))


def _limit(most: int, thinks: bool) -> int:
    """Tokens that may be written for an answer of `most`."""
    return int(most * _SLACK) + (_THINKING if thinks else 0)


def _aloud(text: str) -> str:
    """The text without the thoughts that some models write before it; empty where nothing follows them."""
    opened = _THOUGHT.match(text)
    if opened is None:
        return text.strip()
    return text[opened.end() :].partition(f"</{opened[1]}>")[2].strip()
