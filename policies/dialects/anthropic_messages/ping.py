"""The ping of Anthropic Messages.

Claude API skill, "Prompt caching": "while idle, re-send the previous request with `max_tokens: 0` shortly before the
entry would expire. That request refreshes the entry's timer and bills only a cheap cache read (no output tokens)."
"streaming is a transport option, not part of the cached prefix".
Claude docs, "Prompt caching": such a request is "rejected with an `invalid_request_error` if any of the following are
set": a stream, `thinking.type` "enabled", `output_config.format`, and a `tool_choice` of type "tool" or "any". All of
these but the stream are part of the cached prompt and have to stay, so that there is no ping.
Amazon and Google do not say what `max_tokens: 0` does there; their names of models have a vendor, a region or a version
behind `@`.
"""

import re
from collections.abc import Iterator, Mapping

from policies.dialects.common import list_at, object_at, objects, text_at
from policies.dialects.pings import Values, ping_of

_ITS_MODELS = re.compile(r"claude[^/@:]*")
_RUN_BY_CLIENTS = ("bash_", "text_editor_", "computer_", "memory_")
"""How the types of those of Anthropic's tools begin that its clients run; all others run at the provider."""


def ping(body: bytes) -> bytes:
    return ping_of(body, _objections, _changes)


def _changes(value: Values) -> Mapping[str, bytes]:
    return {"max_tokens": b"0", **({"stream": b"false"} if value("stream") else {})}


def _objections(value: Values) -> Iterator[tuple[str, bool]]:
    holder = {name: value(name) for name in ("thinking", "tool_choice", "output_config", "context_management")}
    tools = [str(tool.get("type") or "custom") for tool in objects(value("tools"))]
    is_hosted = any(tool != "custom" and not tool.startswith(_RUN_BY_CLIENTS) for tool in tools)
    yield "hosted_tools", is_hosted or bool(value("mcp_servers") or value("container"))
    yield "tier", value("service_tier") not in (None, "auto", "standard_only")
    yield "tier", value("speed") not in (None, "standard")
    yield "form", _ITS_MODELS.fullmatch(str(value("model"))) is None
    yield "form", text_at(holder["thinking"], "type") == "enabled"
    yield "form", text_at(holder["tool_choice"], "type") in ("any", "tool")
    yield "form", bool(object_at(holder["output_config"], "format") or value("output_format"))
    # a history that the provider itself shortens has a text written for that
    edits = objects(list_at(holder["context_management"], "edits"))
    yield "form", any(not text_at(edit, "type").startswith("clear_") for edit in edits)
