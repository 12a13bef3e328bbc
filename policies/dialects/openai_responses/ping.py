"""The ping of OpenAI Responses.

OpenAI, "Prompt caching", from GPT-5.6 on: "Set `prompt_cache_options.prewarm` to `true` in a Responses API request to
prepare the prompt cache without generating output." "A cached prefix remains eligible for reuse for 30 minutes after
its most recent write or reuse"; "reusing the prefix refreshes its lifetime without another cache-write charge." It does
not name `store` among what is part of the prompt, and the reference permits false. Nor does it name `stream`: where an
upstream drops the option, what it writes instead is seen as it begins.
Of older models, and of chat completions, no sentence says which limit of the output keeps the cache.
"""

import re
from collections.abc import Iterator, Mapping

from policies.dialects.common import as_json, objects
from policies.dialects.pings import Values, ping_of

_ITS_MODELS = re.compile(r"gpt-(?:5\.(?:[6-9]|\d\d)|[6-9]|1\d)(?!\d)[^/@:]*")
_MEMBERS = re.compile(
    "model|input|instructions|tools|tool_choice|parallel_tool_calls|max_(?:tool_calls|output_tokens)|reasoning|text"
    "|temperature|top_p|top_logprobs|(?:client_)?metadata|include|store|stream(?:_options)?|truncation|user|background"
    "|safety_identifier|prompt(?:_cache_(?:key|options|retention))?|service_tier|conversation|previous_response_id"
    "|context_management"
)
_RUN_BY_CLIENTS = frozenset({"function", "custom", "local_shell", "apply_patch"})
_ITEMS = re.compile(
    "message|reasoning|compaction|item_reference|additional_tools|configuration_update"
    "|(?:function|custom_tool|local_shell|apply_patch|tool_search)_call(?:_output)?|tool_search_output"
)
"""The types of items in which the provider has run nothing, and is to run nothing."""


def ping(body: bytes) -> bytes:
    return ping_of(body, _MEMBERS, _objections, _changes)


def _changes(value: Values) -> Mapping[str, bytes]:
    options = value("prompt_cache_options")
    prewarm = {**(options if isinstance(options, dict) else {}), "prewarm": True}
    return {"prompt_cache_options": as_json(prewarm), "store": b"false", "stream": b"true"}


def _objections(value: Values) -> Iterator[tuple[str, bool]]:
    items, options = list(objects(value("input"))), value("prompt_cache_options")
    choice = objects([value("tool_choice")])
    chosen = [tool.get("tools") if tool.get("type") == "allowed_tools" else [tool] for tool in choice]
    tools = [value("tools"), *(item.get("tools") for item in items), *chosen]
    yield "hosted_tools", not all(map(_are_run_by_clients, tools))
    yield "hosted_tools", not all(_ITEMS.fullmatch(str(item.get("type", "message"))) for item in items)
    yield "stored", any(value(name) for name in ("conversation", "previous_response_id", "prompt", "background"))
    yield "stored", value("store") is not False and any(map(_is_stored, items))
    yield "tier", value("service_tier") not in (None, "auto", "default")
    yield "form", _ITS_MODELS.fullmatch(str(value("model"))) is None
    yield "form", bool(value("context_management"))
    yield "form", isinstance(options, dict) and "prewarm" in options


def _are_run_by_clients(tools: object, depth: int = 3) -> bool:
    """True where the provider runs none of these tools, nor of those in their groups."""
    for tool in objects(tools):
        is_group = tool.get("type") == "namespace" and depth > 0
        if not (_are_run_by_clients(tool.get("tools"), depth - 1) if is_group else tool.get("type") in _RUN_BY_CLIENTS):
            return False
    return True


def _is_stored(item: Mapping[str, object]) -> bool:
    """True where the provider looks it up in what it stores."""
    kind = item.get("type")
    return kind == "item_reference" or (kind == "reasoning" and not item.get("encrypted_content"))
