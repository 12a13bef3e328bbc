"""Definitions of tools that are deferred, over sockets: who is sent what, what a search brings, and what nobody
notices."""

import json
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest

from policies.dialects import DIALECTS
from policies.model.memory import StepRecord
from policies.tools import RECALL, SEARCH
from proxy.app import App
from proxy.kernel.defer import CalledTools
from proxy.lab.provider import Received, Say
from proxy.lab.provider.api import Violation
from proxy.memory import Key
from proxy.memory.cached import CachedStore, WriteBehindQueue
from tests.kit.apis import APIS, Api
from tests.kit.deferring import (
    ASK,
    DONE,
    MODELS,
    TOOLS,
    accepted,
    always,
    finding,
    looks,
    name_of,
    names_sent,
    native,
    tool,
)
from tests.kit.recalling import BOTH, call
from tests.kit.speaking import Heard, Speaker, speaking
from tests.kit.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")
EXPORT = Say("I do. ", [call("c1", "export_shipment", identifier="x", reason="y")])
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "exported"}
FOUND = ["export_shipment", "create_shipment", "list_shipment", "delete_shipment", "archive_shipment"]
OURS = {"openai_chat": SEARCH, "openai_responses": "tool_search", "anthropic_messages": SEARCH}
"""How our search tool is listed."""


@pytest.fixture
async def app(stage: Stage) -> App:
    return await stage.start(tools="defer", preset="lossless")


async def ask(speaker: Speaker, *more: Any, stream: bool = False, **fields: Any) -> Heard:
    """A request with the whole list, of which nothing that is ours comes back."""
    api = speaker.api
    fields = {"tools": TOOLS, "model": MODELS[api.dialect], **fields}
    heard = await speaker.hear([ASK, *more], stream, **fields)
    assert not any(word in heard.raw for word in (SEARCH.encode(), RECALL.encode(), b"tool_search", b"namespace"))
    assert b"defer_loading" not in heard.raw
    return heard


def found_in(received: Received) -> list[list[str]]:
    """The names that each search of a history has brought, in the order of the API."""
    found = []
    for entry in received.json[DIALECTS[received.dialect].fields.history]:
        if entry.get("type") == "tool_search_output":
            found.append([name_of(each) for each in entry["tools"]])
            assert all(each["defer_loading"] is True for each in entry["tools"])
        for block in entry["content"] if isinstance(entry.get("content"), list) else ():
            inner = block.get("content") if block.get("type") == "tool_result" else None
            names = [each["tool_name"] for each in inner if "tool_name" in each] if isinstance(inner, list) else []
            found += [names] if names else []
    return found


@BOTH
async def test_a_search_is_answered_and_what_it_found_is_called(
    stage: Stage, speaker: Speaker, api: Api, stream: bool
) -> None:
    stage.provider.answer = finding("export the shipment", EXPORT)
    await accepted(speaker)
    heard = await ask(speaker, stream=stream)
    assert (heard.text, heard.calls, heard.finish) == ("Let me look. I do. ", ["export_shipment"], "tool_calls")
    stage.provider.answer = always(DONE)
    last = await ask(speaker, heard.message(), RESULT, stream=stream)
    assert (last.text, last.prefix, last.mode) == ("Done.", "extended", "compacted")
    _, first, second, third = stage.provider.requests
    assert [each.violation for each in stage.provider.requests] == [None] * 4
    brought = FOUND if api.dialect == "openai_chat" else []
    assert names_sent(first, api) == [OURS[api.dialect], RECALL]
    assert names_sent(second, api) == names_sent(third, api) == [OURS[api.dialect], *brought, RECALL]
    assert found_in(third) == ([] if brought else [FOUND])
    assert first.json["tools"] == second.json["tools"] or bool(brought)
    assert (b'"namespace":"export_shipment"' in third.body) == (api.dialect == "openai_responses")
    assert third.usage is not None
    assert third.usage.cached > 0 or api.dialect == "anthropic_messages"


async def test_a_reply_tells_of_all_the_tools_that_the_client_has(stage: Stage, app: App) -> None:
    """OpenAI repeats them in each response."""
    api = APIS["openai_responses"]
    stage.provider.answer = finding("export", EXPORT)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        for stream in (False, True):
            heard = await ask(speaker, {"role": "user", "content": f"streams: {stream}"}, stream=stream)
            assert json.loads(heard.reply.model_dump_json())["tools"] != []
            assert [each.name for each in heard.reply.tools] == [name_of(each) for each in native(api)]


@BOTH
async def test_a_search_beside_a_call_of_the_clients(stage: Stage, speaker: Speaker, api: Api, stream: bool) -> None:
    own = {"role": "system", "content": "You may call list_sensor."}
    mixed = Say("Both. ", [looks("rename recipe", "find_1"), call("c1", "list_sensor", identifier="1", reason="r")])
    stage.provider.answer = always(mixed)
    await accepted(speaker)
    heard = await speaker.hear([own, ASK], stream, tools=TOOLS, model=MODELS[api.dialect])
    assert heard.calls == ["list_sensor"]
    assert SEARCH.encode() not in heard.raw
    stage.provider.answer = always(DONE)
    await speaker.hear([own, ASK, heard.message(), RESULT], stream, tools=TOOLS, model=MODELS[api.dialect])
    last = stage.provider.requests[-1]
    assert last.violation is None
    names = names_sent(last, api)
    assert "list_sensor" in names
    if api.dialect == "openai_chat":
        assert "rename_recipe" in names
    else:
        assert found_in(last)[0][0] == "rename_recipe"


async def test_a_search_that_finds_nothing_says_what_there_is(stage: Stage, speaker: Speaker, api: Api) -> None:
    stage.provider.answer = finding("quantum chromodynamics")
    await accepted(speaker)
    assert (await ask(speaker)).text == "Let me look. Done."
    last = stage.provider.requests[-1]
    assert last.violation is None
    assert names_sent(last, api) == [OURS[api.dialect], RECALL]
    said = last.body.decode()
    assert ("nothing found; there are: create_issue, list_issue" in said) == (api.dialect != "openai_responses")


async def test_a_deferred_tool_that_is_called_without_a_search(stage: Stage, speaker: Speaker, api: Api) -> None:
    stage.provider.answer = always(EXPORT)
    await accepted(speaker)
    heard = await ask(speaker)
    assert heard.calls == ["export_shipment"]
    stage.provider.answer = always(DONE)
    assert (await ask(speaker, heard.message(), RESULT)).prefix == "extended"
    assert [each.violation for each in stage.provider.requests] == [None] * 3
    assert b"namespace" not in stage.provider.requests[-1].body


async def test_without_the_setting_every_byte_of_the_list_is_sent(stage: Stage, api: Api) -> None:
    app = await stage.start(preset="lossless", recall="never")
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        await ask(speaker)
    assert stage.provider.requests[-1].json["tools"] == native(api)


@pytest.mark.parametrize("where", ["rule", "preset", "header"])
async def test_a_rule_and_a_preset_may_say_so_and_a_header_undoes_it(stage: Stage, api: Api, where: str) -> None:
    settings: dict[str, Any] = {"tools": "defer"}
    if where == "rule":
        settings = {"rules": [{"model": MODELS[api.dialect], "tools": "defer"}]}
    if where == "preset":
        settings = {"presets": {"mine": {"base": "lossless", "tools": "defer"}}}
    app = await stage.start(**{"preset": "mine" if where == "preset" else "lossless", **settings})
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        headers = {"x-narrows": "off"} if where == "header" else {}
        await ask(speaker, extra_headers=headers)
    is_whole = len(names_sent(stage.provider.requests[-1], api)) >= 60
    assert is_whole == (where == "header")


async def test_replicas_and_restarts_send_the_same(stage: Stage, app: App, api: Api) -> None:
    """One of them has learned meanwhile what the tenant's conversations call."""
    stage.provider.answer = finding("export the shipment", EXPORT)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        heard = await ask(speaker)
        history = [heard.message(), RESULT]
        stage.provider.answer = always(DONE)
        await ask(speaker, *history)
    for close in (False, True):
        if close:
            await app.close(1)
        other = await stage.start(tools="defer", preset="lossless")
        async with speaking(api, other.base_url) as speaker:
            await accepted(speaker)
            assert (await ask(speaker, *history)).prefix == "extended"
    bodies = {json.dumps(each.json) for each in stage.provider.requests if b"exported" in each.body}
    assert len(bodies) == 1


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_first_request_that_two_replicas_get_is_decided_once(
    stage: Stage, api: Api, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: str
) -> None:
    """For the second of them something else would be right; a third one goes on."""

    async def called(*_: Any) -> dict[str, int]:
        return {"list_sensor": 3}

    shared = {"store": f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}"} if kind == "redis" else {}
    apps = [await stage.start(tools="defer", preset="lossless", **shared) for _ in range(3)]
    stage.provider.answer = finding("export the shipment", EXPORT)
    async with AsyncExitStack() as stack:
        one, two, three = [await stack.enter_async_context(speaking(api, app.base_url)) for app in apps]
        for speaker in (one, two):
            await accepted(speaker)
        first = await ask(one)
        monkeypatch.setattr(CalledTools, "counts", called)
        second = await ask(two)
        assert first.message() == second.message()
        stage.provider.answer = always(DONE)
        assert (await ask(three, first.message(), RESULT)).prefix == "extended"
    sent = [each.json["tools"] for each in stage.provider.requests if each.json.get("tools")]
    assert sent[:2] == sent[2:4]
    assert sent[4] == sent[1]


async def test_where_the_store_was_wiped_the_list_is_whole(stage: Stage, app: App, api: Api) -> None:
    stage.provider.answer = finding("export the shipment", EXPORT)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        heard = await ask(speaker)
    await app.close(1)
    for file in stage.path.parent.glob("narrows.db*"):
        file.unlink()
    stage.provider.answer = always(DONE)
    other = await stage.start(tools="defer", preset="lossless")
    async with speaking(api, other.base_url) as speaker:
        await accepted(speaker)
        again = await ask(speaker, heard.message(), RESULT)
    last = stage.provider.requests[-1]
    assert (again.prefix, last.violation) == ("checkpoint:replayed", None)
    assert names_sent(last, api)[:60] == [name_of(each) for each in native(api)]


async def test_another_list_in_mid_conversation_is_another_decision(stage: Stage, app: App, api: Api) -> None:
    stage.provider.answer = always(EXPORT)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        heard = await ask(speaker)
        stage.provider.answer = always(DONE)
        history = [heard.message(), RESULT]
        again = await ask(speaker, *history, tools=TOOLS[::-1])
        assert again.prefix == "client-changed"
        history += [again.message(), {"role": "user", "content": "And?"}]
        assert (await ask(speaker, *history, tools=TOOLS[::-1])).prefix == "extended"
    for received in list(stage.provider.requests)[-2:]:
        assert {*names_sent(received, api)} == {OURS[api.dialect], RECALL, "export_shipment"}


CHOICES = {
    "openai_chat": {"type": "function", "function": {"name": "list_issue"}},
    "openai_responses": {"type": "function", "name": "list_issue"},
    "anthropic_messages": {"type": "tool", "name": "list_issue"},
}


async def test_a_request_that_forces_a_deferred_tool_has_them_all(stage: Stage, app: App, api: Api) -> None:
    stage.provider.answer = always(DONE)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        heard = await ask(speaker)
        history = [heard.message(), {"role": "user", "content": "And?"}]
        forced = await ask(speaker, *history, tool_choice=CHOICES[api.dialect])
        assert forced.prefix == "checkpoint:tools"
        history += [forced.message(), {"role": "user", "content": "More."}]
        assert (await ask(speaker, *history)).prefix == "checkpoint:tools"
    sizes = [len(names_sent(each, api)) for each in stage.provider.requests]
    assert sizes == [0, 2, 61, 2]


async def test_what_one_conversation_calls_is_there_in_the_next(stage: Stage, app: App, api: Api) -> None:
    stage.provider.answer = always(EXPORT)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        heard = await ask(speaker)
        stage.provider.answer = always(DONE)
        await ask(speaker, heard.message(), RESULT)
        called = app.services.compaction.compactor.deferral.called  # type: ignore[union-attr]
        await called.store.close()
        called._lists.clear()
        await speaker.hear([{"role": "user", "content": "Another."}], tools=TOOLS, model=MODELS[api.dialect])
    assert {*names_sent(stage.provider.requests[-1], api)} == {OURS[api.dialect], RECALL, "export_shipment"}


async def test_for_a_credential_that_nobody_knows_the_request_alone_decides(
    stage: Stage, app: App, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def called(*_: Any) -> dict[str, int]:
        return {"list_sensor": 3}

    claims: list[StepRecord] = []

    async def claim(self: CachedStore, key: Key, record: StepRecord) -> None:
        claims.append(record)

    monkeypatch.setattr(CalledTools, "counts", called)
    monkeypatch.setattr(CachedStore, "claim", claim)
    stage.provider.answer = always(DONE)
    async with speaking(api, app.base_url) as speaker:
        heard = await ask(speaker)
        history = [heard.message(), {"role": "user", "content": "And?"}]
        assert (await ask(speaker, *history)).prefix == "extended"
    await app.close(1)
    other = await stage.start(tools="defer", preset="lossless")
    async with speaking(api, other.base_url) as speaker:
        assert (await ask(speaker, *history)).prefix == "extended"
    assert [names_sent(each, api) for each in stage.provider.requests] == [[OURS[api.dialect], RECALL]] * 3
    assert not claims


async def test_of_a_credential_that_is_refused_nothing_is_written(
    stage: Stage, app: App, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(CachedStore, "claim", lambda *each: written.append(each))
    monkeypatch.setattr(WriteBehindQueue, "put", lambda *each: written.append(each))
    stage.provider.refuse = lambda _: Violation("no", None, status=401)
    async with speaking(api, app.base_url) as speaker:
        with pytest.raises(Exception, match="no"):
            await ask(speaker)
    assert names_sent(stage.provider.requests[-1], api) == [OURS[api.dialect], RECALL]
    assert not written


def refusing(words: str) -> Any:
    def refuse(body: Any) -> Violation | None:
        is_there = words in json.dumps(body)
        return Violation(f"{words}: Extra inputs are not permitted", "tools") if is_there else None

    return refuse


@BOTH
@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        ("anthropic_messages", "defer_loading"),
        ("anthropic_messages", "tool_reference"),
        ("openai_responses", "tool_search"),
        ("openai_responses", "tool_search_output"),
    ],
)
async def test_an_upstream_that_refuses_the_form_gets_the_list(
    stage: Stage, app: App, dialect: str, words: str, stream: bool
) -> None:
    api = APIS[dialect]
    stage.provider.refuse, stage.provider.answer = refusing(words), finding("export", DONE)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        heard = await ask(speaker, stream=stream)
        assert heard.text.endswith("Done.")
        history = [heard.message(), {"role": "user", "content": "And?"}]
        assert (await ask(speaker, *history, stream=stream)).text == "Done."
    assert [each.violation is not None for each in stage.provider.requests].count(True) == 1
    assert len(names_sent(stage.provider.requests[-1], api)) == 61


async def test_an_error_that_only_repeats_the_word_teaches_nothing(stage: Stage, app: App) -> None:
    api = APIS["anthropic_messages"]
    stage.provider.refuse = lambda body: Violation("no defer_loading today", None) if body.get("tools") else None
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        with pytest.raises(Exception, match="no defer_loading today"):
            await ask(speaker)
        stage.provider.refuse = lambda _: None
        await speaker.hear([{"role": "user", "content": "Again."}], tools=TOOLS, model=MODELS[api.dialect])
    assert len(names_sent(stage.provider.requests[-1], api)) == 2


async def test_counts_are_of_what_is_sent(stage: Stage, app: App) -> None:
    api = APIS["anthropic_messages"]
    body = {**api.body([ASK], tools=TOOLS), "model": MODELS[api.dialect]}
    body.pop("max_tokens", None)
    head = {"x-api-key": "k", "anthropic-version": "2023-06-01", "Content-Type": "application/json"}
    sizes = []
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        for at in range(2):
            if at:
                await ask(speaker)
            url = f"{app.base_url}/messages/count_tokens"
            async with stage.client.post(url, data=json.dumps(body, separators=(",", ":")), headers=head) as reply:
                sizes.append((await reply.json())["input_tokens"])
    assert sizes[0] > 5_000 > 1_000 > sizes[1]


async def test_trouble_with_a_list_leaves_it_whole(stage: Stage, app: App, api: Api, monkeypatch: Any) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("proxy.kernel.defer.decided", fail)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        await ask(speaker)
    assert len(names_sent(stage.provider.requests[-1], api)) == 61


async def test_a_huge_list_of_hostile_names(stage: Stage, app: App) -> None:
    """Two thousand tools; those whose names are no names stay."""
    api = APIS["anthropic_messages"]
    many = [tool(f"tool_{n}", "It does <b>something</b>. " * 9, **{f"p{n % 7}": "x"}) for n in range(1_900)]
    many += [tool("narrows", "x", **{f"p{n}": "y" * 40 for n in range(900)})]
    stage.provider.answer = finding("tool_77 narrows", DONE)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        assert (await ask(speaker, tools=many)).text == "Let me look. Done."
    last = stage.provider.requests[-1]
    assert last.violation is None
    assert names_sent(last, api) == [SEARCH, RECALL]
    assert {*found_in(last)[0]} == {"tool_77", "narrows"}


@pytest.mark.parametrize("named", ["system", "person"])
async def test_a_tool_that_somebody_names_is_there_from_the_beginning(
    stage: Stage, speaker: Speaker, api: Api, named: str
) -> None:
    said = "Use rename_branch for that."
    words = [{"role": "system", "content": said}] if named == "system" else [{"role": "user", "content": said}]
    await accepted(speaker)
    await speaker.hear([*words, ASK], tools=TOOLS, model=MODELS[api.dialect])
    assert {*names_sent(stage.provider.requests[-1], api)} == {OURS[api.dialect], RECALL, "rename_branch"}


async def test_the_bill_is_of_what_was_sent_beside_the_whole_list(stage: Stage, app: App, api: Api) -> None:
    stage.provider.answer = finding("export the shipment", EXPORT)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        heard = await ask(speaker)
        before, after = (int(heard.headers[f"x-narrows-tokens-{when}"]) for when in ("before", "after"))
        stage.provider.answer = always(DONE)
        last = await ask(speaker, heard.message(), RESULT)
    first = list(stage.provider.requests)[1]
    assert first.usage is not None
    assert abs(after - first.usage.prompt) < 20
    assert before > 5_000
    sizes = [each.usage.prompt for each in stage.provider.requests if each.usage is not None]
    assert abs(int(last.headers["x-narrows-tokens-after"]) - sizes[-1]) < 0.1 * sizes[-1]
