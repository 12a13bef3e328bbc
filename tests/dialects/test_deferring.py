"""A list of which some definitions are deferred, to the byte, in each API."""

import json
from typing import Any

import pytest

from policies.dialects import DIALECTS
from policies.dialects.deferring import DeferralForm, DeferredTools, catalog_of, decided, forced, searches, with_list
from policies.dialects.tool_lists import definition_tokens
from policies.model.conversation import converse
from policies.model.rawjson import UnreadableError
from policies.model.tokens import Counter
from policies.money.prices import Prices
from policies.recall import FINDS, QUERY
from policies.tools import SEARCH
from tests.kit.apis import APIS, Api
from tests.kit.deferring import ASK, MODELS, TOOLS, looks, tool
from tests.kit.histories import Json

COUNT = Counter()
ONE = b'{"name" : "one", "input_schema":{"type":"object"} }'
TWO = b'{"cache_control":{"type": "ephemeral", "ttl":"1h"},"name":"two","input_schema":{}}'
BASH = b'{"type":"bash_20250124","name":"bash"}'


def form(dialect: str) -> DeferralForm:
    found = DIALECTS[dialect].deferral
    assert found is not None
    return found


def listed(dialect: str, *raws: bytes, places: tuple[int, ...], found: tuple[int, ...] = ()) -> bytes:
    whole = b"[" + b", ".join(raws) + b"]"
    catalog = catalog_of(form(dialect), whole, COUNT)
    tools = DeferredTools(form(dialect), catalog, places, whole, (0.1, 1.0))
    return tools.list([catalog.definitions[at] for at in found])


def says(*names: str) -> bytes:
    return json.dumps(FINDS.format(", ".join(names))).encode()


def test_messages_keep_every_definition_and_the_mark_moves() -> None:
    ours = b'{"name":"%s","description":%s,"input_schema":%s' % (SEARCH.encode(), says("two"), QUERY.encode())
    mark = b',"cache_control":{"type": "ephemeral", "ttl":"1h"}}'
    two = b'{"name":"two","input_schema":{},"defer_loading":true}'
    assert listed("anthropic_messages", ONE, TWO, BASH, places=(1,)) == b",".join(
        [b"[" + ours + b"}", ONE[:-1] + mark, two, BASH + b"]"]
    )
    assert listed("anthropic_messages", TWO, BASH, places=(0,)) == b",".join([b"[" + ours + mark, two, BASH + b"]"])


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (b'{"name":"two","input_schema":{},"cache_control":null}', b'{"name":"two","input_schema":{}'),
        (b'{"name":"two" , "cache_control":{"type":"x"} ,"input_schema":{}}', b'{"name":"two"  ,"input_schema":{}'),
    ],
)
def test_messages_lose_the_mark_of_a_deferred_tool(before: bytes, behind: bytes) -> None:
    assert behind + b',"defer_loading":true}]' in listed("anthropic_messages", ONE, before, places=(1,))


def test_a_mark_that_is_spelled_with_an_escape_is_no_guess() -> None:
    with pytest.raises(UnreadableError):
        listed("anthropic_messages", b'{"name":"two","input_schema":{},"cache\\u005fcontrol":{}}', places=(0,))


def test_responses_leave_out_what_is_deferred() -> None:
    one, two = b'{"type":"function", "name":"one"}', b'{"type":"function","name":"two","parameters":{}}'
    ours = b'{"type":"tool_search","execution":"client","description":%s,"parameters":%s}' % (
        says("two"),
        QUERY.encode(),
    )
    assert listed("openai_responses", one, two, places=(1,), found=(1,)) == b"[" + one + b"," + ours + b"]"


def test_chat_has_what_was_found_at_the_end_of_the_list() -> None:
    one, two = (b'{"type":"function","function":{"name":"%s" } }' % name for name in (b"one", b"two"))
    ours = b'{"type":"function","function":{"name":"%s","description":%s,"parameters":%s}}' % (
        *(SEARCH.encode(), says("two")),
        QUERY.encode(),
    )
    assert listed("openai_chat", one, two, places=(1,)) == b"[" + one + b"," + ours + b"]"
    assert listed("openai_chat", one, two, places=(1,), found=(1,)) == b"[" + b",".join([one, ours, two]) + b"]"


def places(api: Api, tools: list[Any], messages: list[Json] | None = None, **fields: Any) -> tuple[int, ...]:
    """What is deferred of a list in the form of the API."""
    fields = {"model": MODELS[api.dialect], **fields}
    body = json.dumps({**api.body(messages or [ASK], tools=TOOLS), **fields, "tools": tools}).encode()
    dialect = DIALECTS[api.dialect]
    request = dialect.split(body)
    assert request is not None
    conversation = converse([dialect.read(request.raw(at), COUNT) for at in range(len(request.spans))])
    catalog = catalog_of(form(api.dialect), request.tool_list, COUNT)
    return decided(form(api.dialect), request, conversation, catalog, COUNT, Prices())


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic_messages"])
def test_a_search_that_writes_the_prompt_anew_brings_neighbours(dialect: str) -> None:
    """As many tokens as the prompt has, but no more than a quarter of the list."""
    api = APIS[dialect]

    def names(words: int) -> set[str]:
        ask = {"role": "user", "content": "far " * words}
        looking = {"role": "assistant", "content": None, "tool_calls": [looks("list_shipment")]}
        answer = {"role": "tool", "tool_call_id": "find_1", "content": "found"}
        request = DIALECTS[dialect].split(json.dumps(api.body([ask, looking, answer], tools=TOOLS)).encode())
        assert request is not None
        conversation = converse([DIALECTS[dialect].read(request.raw(at), COUNT) for at in range(len(request.spans))])
        catalog = catalog_of(form(dialect), request.tool_list, COUNT)
        tools = DeferredTools(form(dialect), catalog, tuple(range(60)), request.tool_list, (0.1, 1.0))
        return {each.name for each in tools.found_in(conversation)}

    hits, some, many = names(1), names(1_100), names(1_600)
    assert "list_shipment" in hits
    if dialect == "openai_chat":
        assert hits < some < many
        assert {"export_branch", "create_contract"} <= many
        assert len(names(5_000)) < 20
    else:
        assert hits == some == many


def native(api: Api, tools: list[Json]) -> list[Json]:
    found: list[Json] = api.body([ASK], tools=tools)["tools"]
    return found


CHOICES = {
    "openai_chat": {"type": "function", "function": {"name": "list_issue"}},
    "openai_responses": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "list_issue"}],
    },
    "anthropic_messages": {"type": "tool", "name": "list_issue"},
}


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_only_functions_are_deferred_and_those_that_nobody_names(api: Api) -> None:
    whole = native(api, TOOLS)
    assert places(api, whole) == tuple(range(60))
    odd = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "custom_thing", "name": "grep"}, *whole]
    assert places(api, odd) == tuple(range(2, 62))
    assert 1 not in places(api, whole, tool_choice=CHOICES[api.dialect])
    assert 1 not in places(api, whole, [{"role": "user", "content": "Call list_issue."}])
    assert 1 not in places(api, whole, [{"role": "system", "content": "You may use list_issue."}, ASK])


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
@pytest.mark.parametrize("name", ["ToolSearch", "tool_search_tool_bm25", "search_tools", "mcp__x__find-tools"])
def test_a_client_that_searches_by_itself_is_left_alone(api: Api, name: str) -> None:
    assert places(api, native(api, [*TOOLS, tool(name, "Finds.")])) == ()
    assert places(api, [*native(api, TOOLS), {"type": name, "name": "x"}]) == ()
    assert places(api, [{**native(api, TOOLS)[0], "defer_loading": True}, *native(api, TOOLS)[1:]]) == ()


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_a_list_that_cannot_be_read_is_no_catalog(api: Api) -> None:
    for tools in (b"[1]", b'["x"]', b"{}", b"[{]", b'[{"a":1},null]'):
        with pytest.raises(UnreadableError):
            catalog_of(form(api.dialect), tools, COUNT)


@pytest.mark.parametrize(
    ("dialect", "model", "takes"),
    [
        ("anthropic_messages", "claude-opus-4-5-20251101", True),
        ("anthropic_messages", "claude-haiku-4-5@20251001", True),
        ("anthropic_messages", "anthropic/claude-opus-5.5", True),
        ("anthropic_messages", "claude-fable-5-2", True),
        ("anthropic_messages", "claude-sonnet-10", True),
        ("anthropic_messages", "claude-opus-4-1-20250805", False),
        ("anthropic_messages", "claude-sonnet-4-20250514", False),
        ("anthropic_messages", "claude-3-5-haiku-20241022", False),
        ("anthropic_messages", "us.anthropic.claude-opus-4-6-v1:0", False),
        ("anthropic_messages", "glm-5", False),
        ("openai_responses", "gpt-5.4", True),
        ("openai_responses", "gpt-5.4-mini", True),
        ("openai_responses", "openai/gpt-6.1-sol", True),
        ("openai_responses", "gpt-10", True),
        ("openai_responses", "gpt-5.3-codex", False),
        ("openai_responses", "gpt-5", False),
        ("openai_responses", "gpt-4o", False),
        ("openai_responses", "o3", False),
        ("openai_chat", "anything", True),
    ],
)
def test_models_that_know_the_form(dialect: str, model: str, takes: bool) -> None:
    body = json.dumps({**APIS[dialect].body([ASK], tools=TOOLS), "model": model, "store": False}).encode()
    request = DIALECTS[dialect].split(body)
    assert request is not None
    assert form(dialect).takes(request) is takes


def test_responses_that_are_stored_are_left_alone() -> None:
    for fields in ({"store": True}, {}, {"store": False, "background": True}):
        body = {"model": "gpt-5.4", "input": "x", "tools": [], **fields}
        request = DIALECTS["openai_responses"].split(json.dumps(body).encode())
        assert request is not None
        assert not form("openai_responses").takes(request)


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_a_request_with_another_list_is_the_same_but_for_that(api: Api) -> None:
    for order in (1, -1):
        fields = [*api.body([ASK, ASK], tools=TOOLS[:2]).items()][::order]
        request = DIALECTS[api.dialect].split(json.dumps(dict(fields)).encode())
        assert request is not None
        for tools in (b"[]", b'[{"type": "function"}]' * 1, b"[" + b" " * 9_000 + b"]"):
            other = with_list(request, tools)
            again = DIALECTS[api.dialect].split(other.body)
            assert again is not None
            assert (other.tool_list, other.instructions) == (tools, request.instructions)
            assert (again.spans, again.tools, again.members, again.lead) == (
                *(other.spans, other.tools),
                *(other.members, other.lead),
            )


def test_a_call_of_what_was_deferred_gets_its_namespace_back() -> None:
    """One that stands before the search lacks none; a call that has one keeps it, and whether an item has it changes
    nothing in what is remembered of it."""
    api, dialect = APIS["openai_responses"], DIALECTS["openai_responses"]
    calls: list[Json] = [
        {"type": "function_call", "call_id": name, "name": name, "arguments": "{}", **fields}
        for name, fields in (("two", {}), ("one", {}), ("two", {"namespace": "two"}), ("two", {}))
    ]
    search = {"execution": "client", "type": "tool_search_output", "call_id": "s", "tools": [{"name": "two"}]}
    body = {**api.body([ASK], tools=TOOLS[:1]), "input": [calls[0], search, *calls, {"role": "user", "content": "Go."}]}
    request = dialect.split(json.dumps(body, separators=(",", ":")).encode())
    assert request is not None
    conversation = converse([dialect.read(request.raw(at), COUNT) for at in range(len(request.spans))])
    one, two = (b'{"type":"function","name":"%s"}' % name for name in (b"one", b"two"))
    whole = b"[" + one + b"," + two + b"]"
    catalog = catalog_of(form(api.dialect), whole, COUNT)
    tools = DeferredTools(form(api.dialect), catalog, (1,), whole, (0.1, 1.0))
    sent = tools.applied_to(request, conversation, ())
    history = [json.loads(sent.raw(at)) for at in range(len(sent.spans))]
    assert [each.get("namespace") for each in history] == [None, None, "two", None, "two", "two", None]
    assert dialect.split(sent.body) == sent
    assert [dialect.read(sent.raw(at), COUNT).digest for at in (0, 5)] == [digest_of(calls[0])] * 2
    assert digest_of({**calls[0], "namespace": "theirs"}) != digest_of(calls[0])


def digest_of(item: Json) -> bytes:
    return DIALECTS["openai_responses"].read(json.dumps(item).encode(), COUNT).digest


def test_what_is_deferred_counts_for_nothing() -> None:
    tools = listed("anthropic_messages", ONE, TWO, places=(1,))
    alone = tools.replace(b',{"name":"two","input_schema":{},"defer_loading":true}', b"")
    assert b'"two","input' not in alone
    assert definition_tokens(tools, COUNT) == COUNT(alone.decode())
    assert definition_tokens(tools.replace(b"true", b"false"), COUNT) > definition_tokens(tools, COUNT)


def test_forced_names_are_found_wherever_an_api_has_them() -> None:
    for dialect, choice in CHOICES.items():
        body = {**APIS[dialect].body([ASK], tools=TOOLS), "tool_choice": choice}
        request = DIALECTS[dialect].split(json.dumps(body).encode())
        assert request is not None
        assert forced(request) == {"list_issue"}
    for odd in ("auto", None, 7, ["x"], {"tools": [1, None]}, {"function": "x"}):
        request = DIALECTS["openai_chat"].split(
            json.dumps({"model": "m", "messages": [ASK], "tool_choice": odd}).encode()
        )
        assert request is not None
        assert forced(request) == set()


def test_calls_that_search_are_told_from_recalls() -> None:
    assert searches(json.dumps(looks("x")))
    assert searches(json.dumps({"type": "tool_use", "name": SEARCH, "input": {}}))
    assert searches(json.dumps({"type": "tool_search_call", "arguments": {}}))
    assert not searches(json.dumps({"type": "tool_use", "name": "narrows_recall", "input": {}}))
    assert not searches("nothing")


def test_huge_and_hostile_lists() -> None:
    many = [tool(f"tool_{n}", "x" * (n % 900), **{"p" * (n % 60 + 1): "y"}) for n in range(1_990)]
    many += [tool("tool_1", "again"), tool("odd name", "<b>&"), tool("\u202e", "x"), tool("a" * 300, "x")]
    catalog = catalog_of(form("openai_chat"), json.dumps(many).encode(), COUNT)
    kept = [at for at, each in enumerate(catalog.definitions) if not each.name]
    assert kept == [1, 1_990, 1_991, 1_992, 1_993]
    deep = tool("deep", "x")
    deep["function"]["parameters"]["properties"] = {f"p{n}": {"type": "object"} for n in range(9_000)}
    assert catalog_of(form("openai_chat"), json.dumps([deep]).encode(), COUNT).words
