"""The tools that a request defines, as every API lists them; and the recall tool added to them.

Law: nothing here raises on what a client wrote; a list that cannot be read has no tools.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, wraps
from itertools import islice
from typing import TypeVar

from policies.context import TokenCounter
from policies.dialects.common import Added, Request, as_json, decoded, objects
from policies.dialects.replies import document
from policies.model.conversation import Message
from policies.model.rawjson import UnreadableError, items
from policies.model.tokens import OTHER, tool_label
from policies.tools import RECALL, Kinds, ToolSpec, kinds_by_schema

_REMEMBERED_BYTES = 100_000
_MOST_TOOLS = 1_000
_MOST_SIZES = 500
_MOST_NESTED = 3
T = TypeVar("T")


def remembered(function: Callable[..., T]) -> Callable[..., T]:
    """Remember the results of a pure function of some text, unless the text is longer than tools or system text are as
    a rule: that changes nothing but the time it takes."""
    cached = lru_cache(maxsize=64)(function)

    @wraps(function)
    def call(text: bytes, *more: object) -> T:
        return (cached if len(text) < _REMEMBERED_BYTES else function)(text, *more)

    return call


@remembered
def definition_tokens(tools: bytes, count: TokenCounter) -> int:
    """Tokens of definitions; those that are deferred stand in no prompt until they are found."""
    if b'"defer_loading"' in tools:
        with suppress(UnreadableError):
            raws = [tools[start:end] for start, end in items(tools)]
            tools = b"[" + b",".join(raw for raw in raws if not _is_deferred(raw)) + b"]"
    return count(tools.decode("utf-8", "replace")) if tools else 0


def _is_deferred(raw: bytes) -> bool:
    entry = decoded(raw) if b'"defer_loading"' in raw else None
    return isinstance(entry, dict) and entry.get("defer_loading") is True


def leading_tokens(request: Request, messages: Sequence[Message], count: TokenCounter, roles: Collection[str]) -> int:
    total = definition_tokens(request.tool_list, count)
    for message in messages:
        if message.role not in roles:
            break
        total += message.overhead + sum(part.tokens for part in message.parts)
    return total


@remembered
def tool_names(tools: bytes, inside: str = "") -> tuple[str, ...] | None:
    """The names of the tools, "" where one has none; None where the list cannot be read. `inside` is the member of a
    tool that holds its name, where it does not do so itself."""
    if tools in (b"", b"null"):
        return ()
    entries = decoded(tools)
    if not isinstance(entries, list) or not all(isinstance(tool, dict) for tool in entries):
        return None
    holders = (tool.get(inside) if inside else tool for tool in entries)
    return tuple(str(holder.get("name") or "") if isinstance(holder, dict) else "" for holder in holders)


def with_tool(request: Request, names: Sequence[str] | None, tool: bytes, always: bool, most: int) -> Added | None:
    """Where and how the recall tool is added to a request with tools of these `names`; None where the provider would
    refuse it, because it takes no more than `most`, or where there are none and it is not wanted `always`."""
    if names is None or RECALL in names or len(names) >= most or request.tool_list == b"null":
        return None
    if names:
        return request.tools[1] - 1, b"," + tool
    if not always:
        return None
    if request.tool_list:
        return request.tools[1] - 1, tool
    return request.body.rindex(b"}"), b',"tools":[' + tool + b"]"


def tools(request: Request) -> Sequence[ToolSpec]:
    """The tools; those of a group each by itself."""
    return _specs(request.tool_list)


def tool_kinds(request: Request) -> Kinds:
    return _kinds(request.tool_list)


@remembered
def _kinds(tools: bytes) -> Kinds:
    return kinds_by_schema(_specs(tools))


@lru_cache(maxsize=16)
def tool_sizes(tools: bytes, count: TokenCounter) -> Mapping[str, int]:
    """The tokens of each tool's definition, 0 where it is deferred. Names come from clients: they are cut, and those
    beyond the first _MOST_SIZES are OTHER."""
    sizes: dict[str, int] = {}
    entries = (document(b'{"tools":%s}' % tools) or {}).get("tools")  # which reads halves of surrogate pairs, too
    for tool in islice(_flat(entries, _MOST_NESTED), _MOST_TOOLS):
        name = tool_label(_spec(tool).name)
        name = name if name in sizes or len(sizes) < _MOST_SIZES else OTHER
        is_deferred = tool.get("defer_loading") is True
        sizes[name] = sizes.get(name, 0) + (0 if is_deferred else count(as_json(tool).decode("utf-8", "replace")))
    return sizes


def _specs(tools: bytes) -> tuple[ToolSpec, ...]:
    return tuple(map(_spec, islice(_flat(decoded(tools), _MOST_NESTED), _MOST_TOOLS)))


def _flat(entries: object, depth: int) -> Iterator[dict[str, object]]:
    for tool in objects(entries):
        if depth and isinstance(tool.get("tools"), list):
            yield from _flat(tool["tools"], depth - 1)
        else:
            yield tool


def _spec(tool: dict[str, object]) -> ToolSpec:
    inner = tool.get(str(tool.get("type")))  # chat completions write all but the type one level down
    definition = inner if isinstance(inner, dict) else tool
    parameters = definition.get("parameters") or definition.get("input_schema")
    name, description = definition.get("name") or tool.get("type"), definition.get("description")
    return ToolSpec(str(name or ""), str(description or ""), parameters if isinstance(parameters, dict) else {})
