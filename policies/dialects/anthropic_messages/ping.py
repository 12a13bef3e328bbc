"""The ping of Anthropic Messages.

Claude API skill, "Prompt caching": "while idle, re-send the previous request with `max_tokens: 0` shortly before the
entry would expire. That request refreshes the entry's timer and bills only a cheap cache read (no output tokens)."
"streaming is a transport option, not part of the cached prefix".
Claude docs, "Prompt caching": such a request is "rejected with an `invalid_request_error` if any of the following are
set": a stream, `thinking.type` "enabled", `output_config.format`, and a `tool_choice` of type "tool" or "any". All of
these but the stream are part of the cached prompt and have to stay, so that there is no ping.
Amazon and Google do not say what `max_tokens: 0` does; their models' names have a vendor, a region or a version.
"""

import re
from collections.abc import Iterator, Mapping

from policies.dialects.common import list_at, object_at, objects, text_at
from policies.dialects.pings import Values, ping_of

_ITS_MODELS = re.compile(r"claude[^/@:]*")
_MEMBERS = re.compile(
    "model|max_tokens|messages|system|tools|tool_choice|thinking|temperature|top_[pk]|stop_sequences|stream|metadata"
    "|service_tier|speed|output_config|output_format|context_management|cache_control|diagnostics|inference_geo"
    "|mcp_servers|container"
)
_RUN_BY_CLIENTS = re.compile(r"custom|(?:bash|text_editor|computer|memory)_20\d{6}")
"""The types of tools that clients run; all others run at the provider."""
_CLEARED = re.compile(r"clear_(?:tool_uses|thinking)_20\d{6}")


def ping(body: bytes) -> bytes:
    return ping_of(body, _MEMBERS, _objections, _changes)


def _changes(value: Values) -> Mapping[str, bytes]:
    return {"max_tokens": b"0", **({"stream": b"false"} if value("stream") else {})}


def _objections(value: Values) -> Iterator[tuple[str, bool]]:
    holder = {name: value(name) for name in ("thinking", "tool_choice", "output_config", "context_management")}
    tools = [str(tool.get("type") or "custom") for tool in objects(value("tools"))]
    is_hosted = not all(map(_RUN_BY_CLIENTS.fullmatch, tools))
    yield "hosted_tools", is_hosted or bool(value("mcp_servers") or value("container"))
    yield "tier", value("service_tier") not in (None, "auto", "standard_only")
    yield "tier", value("speed") not in (None, "standard")
    yield "form", _ITS_MODELS.fullmatch(str(value("model"))) is None
    yield "form", text_at(holder["thinking"], "type") == "enabled"
    yield "form", text_at(holder["tool_choice"], "type") not in ("", "auto", "none")
    yield "form", bool(object_at(holder["output_config"], "format") or value("output_format"))
    # a history that the provider itself shortens has a text written for that
    edits = list_at(holder["context_management"], "edits")
    yield "form", not all(_CLEARED.fullmatch(text_at(edit, "type")) for edit in edits)
