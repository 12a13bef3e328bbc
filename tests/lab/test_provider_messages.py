"""What the strict provider refuses and takes in Anthropic's API: each row is one way to be wrong, or to be right."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from proxy.lab.provider import ANTHROPIC, APIS, PromptReader, find_violation
from proxy.lab.provider.signatures import THINKING, seal

Body = dict[str, Any]
Change = Callable[[Body], object]
MARK = {"type": "ephemeral"}


def text(said: str, **fields: object) -> Body:
    return {"type": "text", "text": said, **fields}


def use(name: str = "a", **fields: object) -> Body:
    return {"type": "tool_use", "id": name, "name": "read", "input": {"x": 1}, **fields}


def result(name: str = "a", **fields: object) -> Body:
    return {"type": "tool_result", "tool_use_id": name, "content": "done", **fields}


def thought(said: str = "Hm.", **fields: object) -> Body:
    return {"type": "thinking", "thinking": said, "signature": seal(THINKING, said), **fields}


def user(*blocks: object) -> Body:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: object) -> Body:
    return {"role": "assistant", "content": list(blocks)}


def body() -> Body:
    """A valid request with one of everything; the id of an earlier call is used again."""
    return {
        "model": "claude-sonnet-5",
        "max_tokens": 4_000,
        "system": [text("Be brief.", cache_control=MARK)],
        "messages": [
            {"role": "user", "content": "Go"},
            assistant(thought(), text("Two at once."), use("a"), use("b")),
            user(result("b"), result("a", content=[text("done"), {"type": "image", "source": {}}]), text("Go on")),
            assistant(thought("Again."), use("a")),
            user(result("a", is_error=True, cache_control=MARK)),
        ],
        "tools": [{"name": "read", "description": "Reads.", "input_schema": {"type": "object"}, "cache_control": MARK}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1_024},
        "stream": True,
        "metadata": {"user_id": "me"},
    }


def top(**fields: object) -> Change:
    return lambda b: b.update(fields)


def without(key: str) -> Change:
    return lambda b: b.pop(key)


def say(index: int, *blocks: object) -> Change:
    return lambda b: b["messages"][index].update(content=list(blocks))


def add(*messages: object) -> Change:
    return lambda b: b["messages"].extend(messages)


def drop(index: int) -> Change:
    return lambda b: b["messages"].pop(index)


def tools(*definitions: object) -> Change:
    return lambda b: b.update(tools=list(definitions))


def thinking(**fields: object) -> Change:
    return lambda b: b["thinking"].update(fields)


SYSTEM = {"role": "system", "content": "New rule."}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
TOOL = {"name": "read", "input_schema": {"type": "object"}}
FIVE = [text("x", cache_control=MARK) for _ in range(5)]

# the change, and how the message begins or what stands in it
REFUSED: dict[str, tuple[Change, str]] = {
    "no model": (without("model"), "model: Field required"),
    "no max_tokens": (without("max_tokens"), "max_tokens: Field required"),
    "max_tokens negative": (top(max_tokens=-1), "max_tokens: Input should be greater"),
    "no messages": (without("messages"), "messages: Field required"),
    "no message": (top(messages=[]), "messages: at least one message"),
    "messages an object": (top(messages={"a": 1}), "messages: Input should be a valid list"),
    "unknown field": (top(n=2), "n: Extra inputs are not permitted"),
    "unknown role": (add({"role": "tool", "content": "x"}), "messages.5.role: Input should be"),
    "message a string": (add("x"), "messages.5: Input should be a valid dictionary"),
    "a field beside the content": (add({"role": "user", "content": "x", "name": "y"}), "messages.5.name: Extra inputs"),
    "no content": (add({"role": "user"}), "messages.5.content: Field required"),
    "user says nothing": (say(0), "messages.0: user messages must have non-empty content"),
    "blank user": (say(0, text(" ")), "messages: text content blocks must contain non-whitespace text"),
    "empty text": (say(0, text(""), text("x")), "messages: text content blocks must be non-empty"),
    "empty system block": (top(system=[text("")]), "system: text content blocks must be non-empty"),
    "blank system": (top(system="  "), "system: text content blocks must contain non-whitespace text"),
    "system an image": (top(system=[{"type": "image", "source": {}}]), "system.0.type: Input should be 'text'"),
    "block without type": (say(0, {"text": "x"}), "messages.0.content.0.type: Field required"),
    "block with another field": (say(0, text("x", id="y")), "messages.0.content.0.text.id: Extra inputs"),
    "call without input": (say(3, thought(), {**use(), "input": None}), "messages.3.content.1.tool_use.input: Field"),
    "input a text": (say(3, thought(), use(input="{}")), "tool_use.input: Input should be a valid dictionary"),
    "id with a dot": (say(3, thought(), use("a.b")), "tool_use.id: String should match pattern"),
    "call of a user": (say(0, use()), "messages.0.content.0: `tool_use` blocks can only be in `assistant` messages"),
    "result of the model": (add(assistant(result())), "`tool_result` blocks can only be in `user` messages"),
    "unanswered": (say(4, text("x")), "messages.3: `tool_use` ids were found without `tool_result` blocks"),
    "one of two unanswered": (say(2, result("b")), "immediately after: a."),
    "unanswered at the end": (drop(4), "messages.3: `tool_use` ids were found"),
    "answered behind a text": (say(4, text("x"), result()), "messages.3: `tool_use` ids were found"),
    "answered one message later": (
        lambda b: b["messages"].__setitem__(slice(4, 4), [user(text("x")), assistant(text("y"))]),
        "messages.3: `tool_use` ids were found",
    ),
    "orphan": (say(0, result("z")), "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: z"),
    "answered twice": (say(4, result(), result()), "Found multiple `tool_result` blocks with id: a"),
    "called twice": (say(3, thought(), use(), use()), "`tool_use` ids must be unique"),
    "the model says nothing": (add(assistant(), user(text("x"))), "messages.5: all messages must have non-empty"),
    "system first": (
        lambda b: b["messages"].insert(0, SYSTEM),
        "messages.0: role 'system' must follow a 'user' message",
    ),
    "system behind the model": (add(assistant(text("x")), SYSTEM), "messages.6: role 'system' must follow a 'user'"),
    "system before a user": (
        add(SYSTEM, user(text("x"))),
        "messages.5: role 'system' must precede an 'assistant' message",
    ),
    "an empty word of the model's": (
        add({"role": "assistant", "content": ""}, user(text("x"))),
        "messages.5: all messages must have non-empty content",
    ),
    "a text before the thoughts": (
        say(1, text("So."), thought(), use("a"), use("b")),
        "messages.1.content.0: If an assistant message contains any thinking blocks, the first block must be",
    ),
    "a thought at the end": (
        add(assistant(text("So.")), assistant(thought())),
        "messages.5: The final block in an assistant message cannot be `thinking`.",
    ),
    "found by nobody": (
        say(1, thought(), FOUND, use("a"), use("b")),
        "messages.1: unexpected `tool_use_id` found in `web_search_tool_result` blocks: srvtoolu_1.",
    ),
    "searched in vain": (
        lambda b: b["messages"].insert(1, assistant(SEARCH, text("x"))) or b["messages"].insert(2, user(text("Go"))),
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without a corresponding "
        "`web_search_tool_result` block",
    ),
    "blank at the end": (add(assistant(text("So "))), "final assistant content cannot end with trailing whitespace"),
    "changed thinking": (say(3, thought(thinking="Hm!"), use()), "messages.3.content.0: Invalid `signature`"),
    "foreign signature": (say(1, thought(signature="Zm9yZWlnbg=="), use("a"), use("b")), "Invalid `signature`"),
    "no thinking in the loop": (say(1, use("a"), use("b")), "Expected `thinking` or `redacted_thinking`, but found"),
    "no budget": (top(thinking={"type": "enabled"}), "thinking.enabled.budget_tokens: Field required"),
    "a small budget": (thinking(budget_tokens=100), "greater than or equal to 1024"),
    "a budget above max_tokens": (thinking(budget_tokens=4_000), "`max_tokens` must be greater than"),
    "a cool thinker": (top(temperature=0.2), "`temperature` may only be set to 1"),
    "a forced thinker": (top(tool_choice={"type": "any"}), "Thinking may not be enabled when tool_choice forces"),
    "tool without schema": (tools({"name": "read"}), "tools.0.custom.input_schema: Field required"),
    "tool with a dot": (tools({**TOOL, "name": "a.b"}), "tools.0.custom.name: String should match pattern"),
    "tool in OpenAI's words": (tools({"type": "function", "function": TOOL}, TOOL, TOOL), "must be unique"),
    "tool with another field": (tools({**TOOL, "parameters": {}}), "tools.0.custom.parameters: Extra inputs"),
    "tool_choice without tools": (
        top(tools=[], tool_choice={"type": "any"}, thinking=None),
        "tool_choice may only be specified while providing tools",
    ),
    "an unknown tool": (top(tool_choice={"type": "tool", "name": "x"}, thinking=None), "Tool 'x' not found"),
    "five marks": (say(0, *FIVE), "A maximum of 4 blocks with cache_control may be provided. Found 8."),
    "five with the one at the top": (
        lambda b: (b["messages"].append(user(text("x", cache_control=MARK))), b.update(cache_control=MARK)),
        "Found 5.",
    ),
    "marked thinking": (say(3, thought(cache_control=MARK), use()), "thinking.cache_control: Extra inputs"),
    "marked emptiness": (
        say(4, result(content=[text("", cache_control=MARK)])),
        "cache_control cannot be set for empty text",
    ),
    "an unknown mark": (top(cache_control={"type": "for ever"}), "cache_control: Input tag"),
    "an unknown time": (top(cache_control={**MARK, "ttl": "2h"}), "cache_control.ttl: Input should be"),
    "all tools deferred": (tools({**TOOL, "defer_loading": True}), "At least one tool must have defer_loading=false"),
    "a deferred tool with a mark": (
        tools({**TOOL, "defer_loading": True, "cache_control": MARK}, {**TOOL, "name": "other"}),
        "tools.0: Tools with defer_loading: true cannot use prompt caching",
    ),
    "a reference to no tool": (
        say(4, result(content=[{"type": "tool_reference", "tool_name": "none"}])),
        "Tool reference 'none' not found in available tools",
    ),
    "an hour behind five minutes": (say(4, result(cache_control={**MARK, "ttl": "1h"})), "must not come after"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refuses(name: str) -> None:
    change, words = REFUSED[name]
    request = body()
    change(request)
    before = deepcopy(request)
    found = find_violation(request, ANTHROPIC, "anthropic_messages")
    assert found is not None
    assert words in found.message
    assert request == before


ACCEPTED: dict[str, Change] = {
    "as it is": lambda b: None,
    "everything in strings": lambda b: b.update(system="Be brief."),
    "neighbours of one role": lambda b: b["messages"].insert(0, user(text("Hello"))),
    "results over two messages": lambda b: b["messages"].__setitem__(
        slice(2, 3), [user(result("b")), user(result("a"), text("x"))]
    ),
    "an empty result": say(4, result(content="")),
    "no result but its id": say(4, {"type": "tool_result", "tool_use_id": "a"}),
    "an empty text in a result": say(4, result(content=[text("")])),
    "a blank beside a call": say(3, thought(), text("\n\n"), use()),
    "the model says nothing at the end": add(assistant()),
    "a search": lambda b: b["messages"].insert(1, assistant(thought(), SEARCH, FOUND, text("x"))),
    "a search that goes on behind the results": lambda b: b["messages"].__setitem__(
        slice(3, 5), [assistant(thought(), SEARCH, use()), user(result()), assistant(FOUND, text("x")), user(text("y"))]
    ),
    "a search that is still going on": say(3, thought(), SEARCH, use()),
    "a reply that paused": add(assistant(thought(), text("x"), SEARCH)),
    "prefill": add(assistant(text("So"))),
    "the model first": lambda b: b["messages"].insert(0, assistant(text("Hello"))),
    "system at the end": add(SYSTEM),
    "system between": lambda b: b["messages"].insert(1, SYSTEM),
    "system behind a search": add(assistant(thought(), SEARCH, FOUND), SYSTEM, assistant(text("x"))),
    "unknown blocks": say(0, {"type": "hologram", "rays": [1]}),
    "tools of the server": tools(TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}),
    "omitted thinking": say(3, thought(thinking="", signature=seal(THINKING, "Again.")), use()),
    "redacted thinking": say(3, {"type": "redacted_thinking", "data": "abc"}, use()),
    "adaptive thinking needs no thoughts": lambda b: (
        b.update(thinking={"type": "adaptive"}),
        b["messages"].__setitem__(1, assistant(use("a"), use("b"))),
    ),
    "a later step of the loop without thoughts": say(3, use("a")),
    "an earlier turn without thoughts": lambda b: b["messages"].insert(0, assistant(text("Before."))),
    "automatic caching": top(cache_control=MARK),
    "a reference to a deferred tool": lambda b: (
        b.update(tools=[TOOL, {**TOOL, "name": "other", "defer_loading": True}]),
        say(4, result(content=[{"type": "tool_reference", "tool_name": "other"}]))(b),
    ),
}


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_takes(name: str) -> None:
    request = body()
    ACCEPTED[name](request)
    assert find_violation(request, ANTHROPIC, "anthropic_messages") is None
    assert PromptReader(len, APIS["anthropic_messages"])(request).tokens > 0


def test_counting_needs_no_max_tokens_and_is_strict_else() -> None:
    checks = APIS["anthropic_messages"].counting_checks
    request = body()
    del request["max_tokens"]
    assert [found for check in checks for found in check(request, ANTHROPIC)] == []
    request["messages"].pop()
    assert [found for check in checks for found in check(request, ANTHROPIC)] != []


@pytest.mark.parametrize(
    ("last", "marked"),
    [((text("x"),), 3), ((text("x"), text("")), 3), ((text("x"), {"type": "image", "source": {}}), 4)],
)
def test_automatic_caching_marks_the_last_block_that_can_carry_it(last: tuple[Body, ...], marked: int) -> None:
    request = {"messages": [user(text("a")), assistant(text("b"), thought()), user(*last)], "cache_control": MARK}
    prompt = PromptReader(len, APIS["anthropic_messages"])(request)
    assert prompt.marked("cache_control") == [marked + 1]


def test_a_deferred_definition_counts_where_it_is_referred_to() -> None:
    counted = PromptReader(len, APIS["anthropic_messages"])
    whole, less, found = body(), body(), body()
    other = {**TOOL, "name": "other", "description": "x" * 500}
    whole["tools"] = [TOOL, other]
    less["tools"] = found["tools"] = [TOOL, {**other, "defer_loading": True}]
    say(4, result(content=[{"type": "tool_reference", "tool_name": "other"}]))(found)
    say(4, result(content=[]))(less)
    assert counted(whole).tokens - counted(less).tokens > 500
    assert counted(found).tokens - counted(less).tokens > 500
    shared = [one == two for one, two in zip(counted(less).blocks, counted(found).blocks, strict=False)]
    assert shared.index(False) > 3
