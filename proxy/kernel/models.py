"""Which models a request names, before anything else is read of it."""

import asyncio
from collections.abc import Collection, Iterator, Mapping

from policies.dialects.common import decoded, member
from policies.dialects.limits import TooManyError, check_size
from policies.model.rawjson import UnreadableError, members
from proxy.errors import ApiError

_MANY_KEYS = 20_000
"""Colons in a body that may be as many keys; finding each member takes some 0.5 microseconds."""
_LARGE_BYTES = 2**22
"""A larger body is searched for its model in a thread, so that nobody else waits."""


def check_named(deployment: str, named: str) -> None:
    """Raises ApiError where an upstream that knows no deployments would be asked another model than the path says."""
    if named != deployment:
        message = "This upstream reads the model in the body, not in the path: name the deployment there too."
        raise ApiError(400, message, "model_mismatch", "model")


_FALLBACKS = frozenset(
    {
        *("models", "allowed_models"),  # OpenRouter; Vercel's gateway
        *("fallbacks", "context_window_fallbacks", "content_policy_fallbacks"),  # LiteLLM; AssemblyAI, orq.ai
        *("fallback", "fallback_model", "fallback_models", "default_fallbacks"),
    }
)
"""Fields that name models which may answer in the place of `model`: a name, a list, or objects."""
_UNREADABLE = frozenset({"route", "preset", "user_config", "router_settings_override", "litellm_params"})
"""OpenRouter's, where the upstream alone knows which models they mean; LiteLLM's, which can give a name another one."""
_AROUND = frozenset({"extra_body", "provideroptions", "provider_options", "gateway", "plugins", "orq"})
"""Objects in which these fields may stand."""
_ROUTING = _FALLBACKS | _UNREADABLE | _AROUND
_ROUTING_HEADERS = ("x-portkey-config", "helicone-fallbacks", "x-litellm-model")
_LONGEST = 10_000
"""Bytes of such a field that are read."""


async def named_model(body: bytes) -> str:
    """The model that a request names; "" where that cannot be read, because what is no request is relayed as it is."""
    return (await _in_thread_if_large(body, False))[0]


async def allowed_names(body: bytes, headers: Collection[str]) -> tuple[str, ...]:
    """The model that a request names, and all others that may answer in its place at some upstream; "" for what cannot
    be read, also because an upstream that does not tell capitals from small letters might read another one.
    `headers`: the names of those that come with it."""
    names = await _in_thread_if_large(body, True)
    return (*names, "") if any(name in headers for name in _ROUTING_HEADERS) else names


async def _in_thread_if_large(body: bytes, strictly: bool) -> tuple[str, ...]:
    return _models(body, strictly) if len(body) <= _LARGE_BYTES else await asyncio.to_thread(_models, body, strictly)


def _models(body: bytes, strictly: bool) -> tuple[str, ...]:
    try:
        if body.count(b":") > _MANY_KEYS:
            check_size(body)
        spans = members(body)
        value = member(body, spans, "model")
        if strictly and sum(name.casefold() == "model" for name in spans) > 1:
            value = None
        model = value if isinstance(value, str) else ""
        if not strictly:
            return (model,)
        fields: dict[str, object] = {}
        for name, (start, end) in spans.items():
            if name.casefold() == "tools":
                fields[name] = _served(decoded(body[start:end]))
            if name.casefold() in _ROUTING and body[start:end] != b"null":
                fields[name] = decoded(body[start : start + _LONGEST][: end - start])
                if fields[name] is None:
                    return model, ""
        parts = model.split(",") if "," in model else ()  # LiteLLM asks all in such a list
        return (model, *parts, *_others(fields))
    except (UnreadableError, TooManyError, RecursionError):
        return ("",)


def _served(tools: object) -> list[Mapping[str, object]]:
    """The tools that the provider runs itself, with a model of their own: an advisor, the making of images."""
    entries = [tool for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    return [
        tool
        for tool in entries
        if tool.get("type") not in ("function", "custom") and not tool.keys() & {"function", "input_schema"}
    ]


def _others(value: object) -> Iterator[str]:
    """The models that are named in an object, beside its `messages`; "" for what cannot be read."""
    if isinstance(value, list):
        for each in value:
            yield from _others(each)
    for key, each in value.items() if isinstance(value, Mapping) else ():
        name = key.casefold()
        if name in _FALLBACKS or name == "model":
            yield from _names(each)
        elif name in _UNREADABLE and each is not None:
            yield ""
        elif name != "messages":
            yield from _others(each)


def _names(value: object) -> Iterator[str]:
    """The models in the value of such a field."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _names(each)
    elif isinstance(value, Mapping) and any(key.casefold() == "model" for key in value):
        yield from _others(value)
    elif isinstance(value, Mapping):  # by the name of the model that they stand in for
        for key, each in value.items():
            yield key
            yield from _names(each)
    elif value is not None:
        yield ""
