"""R1, R2, R6-R8: whatever was hidden is within the model's reach, and the client never hears of it."""

import json
import re
from typing import Any

import openai
import pytest

from policies.recall import PAGE
from policies.tools import RECALL
from proxy.app import App
from proxy.provider import Say
from proxy.provider.answers import Answer
from proxy.provider.server import Received
from tests.histories import Json
from tests.proxy.recalling import (
    BOTH,
    REPORT,
    SECOND,
    TOOLS,
    Client,
    answered,
    client_of,
    extends,
    fetched,
    hiding,
    mixed,
    plays,
    recall,
    refs,
    tool_names,
    tools_of,
    wants,
)
from tests.proxy.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")


def final(text: str) -> bool:
    """Whether this is the sentence that ends the search for a reference."""
    return "do not retry, run the tool again" in text


# --- R1: what comes back ---


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps([{"path": "C:\\a", "said": f'"{n}"\n\\u00e9'} for n in range(60)]), id="json"),
        pytest.param("\n".join("".join(map(chr, range(n, 160, 3))) for n in range(30)), id="control"),
        pytest.param("".join(f"👩‍👩‍👧 family {n} 漢字 \u202e\ufeff\n" for n in range(60)), id="emoji"),
        pytest.param("".join(f"half \ud83d and \udc00 of {n}\n" for n in range(60)), id="surrogates"),
        pytest.param("".join(f"line {n}\r\n\r" for n in range(90)), id="crlf"),
        pytest.param("".join(f"[narrows: rest: ref {n}]\n" for n in range(100_000, 100_060)), id="markers"),
        pytest.param("  \n\t" + "x y " * 300 + "  \n\n", id="spaces"),
    ],
)
async def test_r1_what_was_hidden_comes_back_as_it_was(stage: Stage, app: App, text: str) -> None:
    stage.provider.answer = plays(wants("I look. "))
    body = json.dumps({"model": "m", "messages": hiding(text), "tools": TOOLS}).encode()
    exchange = await stage.post(app, body)
    first, second = stage.provider.requests
    assert text not in [message["content"] for message in first.json["messages"]]
    assert fetched(second) == [text]
    assert json.loads(exchange.reply)["choices"][0]["message"]["content"] == "I look. Done."


async def test_r1_of_several_outputs_each_is_told_from_the_others(stage: Stage, client: Client) -> None:
    def all_of_them(received: Received) -> Answer:
        return Say(None, [recall(ref, id_=f"r{n}") for n, ref in enumerate(reversed(refs(received)))])

    stage.provider.answer = plays(all_of_them)
    await client.ask(hiding(REPORT, SECOND, REPORT + "!"))
    assert fetched(stage.provider.requests[-1]) == [REPORT + "!", SECOND, REPORT]


_TRAIL = re.compile(r'\n\[narrows: chars \d+-\d+ of \d+; go on with part "chars (\d+)-(\d+)"[^\n]*\]')
_LAST = "\n[narrows: this was the last recall in this reply]"


class Reader:
    """A model that reads a hidden text to its end: it goes on where the newest page says, 32 pages at a time, as often
    as it may in one reply."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.ended = False
        self._ref = ""
        self._parts = ["chars 0-"]

    def __call__(self, received: Received) -> Answer:
        self._ref = self._ref or refs(received)[0]
        newest = received.json["messages"][-1]
        if newest["role"] == "tool" and newest["tool_call_id"].startswith("r"):
            self._read(fetched(received)[-len(self._parts) :])
            if self.ended or newest["content"].endswith(_LAST):
                return Say("So far.")
        return Say(None, [recall(self._ref, part, f"r{n}") for n, part in enumerate(self._parts)])

    def _read(self, shown: list[str]) -> None:
        more = _TRAIL.search(shown[-1])
        self.pages += [_TRAIL.sub("", page.removesuffix(_LAST)) for page in shown]
        self.ended = more is None
        if more is not None:
            starts = range(int(more[1]), int(more[2]), PAGE)[:32]
            self._parts = [f"chars {start}-{start + PAGE}" for start in starts[:-1]]
            self._parts.append(f"chars {starts[-1]}-{more[2]}")


async def test_r1_five_megabytes_on_one_line_page_by_page_and_by_search(stage: Stage) -> None:
    text = "".join(f"{n:<250}" for n in range(20_000))
    model, replies = Reader(), 0
    stage.provider.answer = model
    said = hiding(text)
    async with client_of((await stage.start()).base_url) as client:
        while not model.ended:
            said += answered((await client.ask(said, replies % 2 == 1)).message())
            replies += 1
        stage.provider.answer = plays(lambda r: Say(None, [recall(refs(r)[0], "find \\b4712 +4713")]))
        await client.ask(said)
    assert "".join(model.pages) == text
    assert (len(text), len(model.pages), replies) == (5_000_000, 250, 3)
    found = fetched(stage.provider.requests[-1])[-1]
    assert found.startswith("1: ")
    assert re.search(r"4712 +4713", found)
    assert len(found) < 1_000


# --- R2: where it works ---


@BOTH
async def test_r2_in_the_very_turn_in_which_it_was_cut(stage: Stage, client: Client, stream: bool) -> None:
    stage.provider.answer = plays(Say("One."), wants())
    whole = hiding()
    await client.ask(whole[:-2], stream)
    await client.ask(whole, stream)
    before, cut, after = stage.provider.requests
    assert (refs(before), len(refs(cut)), fetched(after)) == ([], 1, [REPORT])


@pytest.mark.parametrize("change", ["restart", "wiped store", "replica"])
@BOTH
async def test_r2_elsewhere_and_later(stage: Stage, app: App, change: str, stream: bool) -> None:
    said = hiding()
    stage.provider.answer = plays(wants("I look. "), Say("Seen."), wants(part="lines 2-3"))
    async with client_of(app.base_url) as client:
        said += answered((await client.ask(said, stream)).message())
    if change != "replica":
        await app.close(1)
    if change == "wiped store":
        for file in stage.path.parent.glob("narrows.db*"):
            file.unlink()
    async with client_of((await stage.start(preset="keeping")).base_url) as client:
        heard = await client.ask(said, stream)
    last = list(stage.provider.requests)[-1]
    assert heard.text == "Done."
    assert fetched(last)[-1] == "".join(REPORT.splitlines(keepends=True)[1:3])
    if change == "wiped store":
        assert heard.headers["x-narrows-prefix"] == "checkpoint:replayed"
        assert len(fetched(last)) == 1
    else:
        assert heard.headers["x-narrows-prefix"] == "extended"
        assert fetched(last)[0] == REPORT
        assert extends(stage.provider.requests[1], stage.provider.requests[2])


# --- R6: bad references, and models that loop ---


@pytest.mark.parametrize(
    "arguments",
    ['{"ref": "000001"}', '{"ref": ""}', "{}", '{"ref": null}', '{"ref": ["x", {}]}', '{"ref": "1234567890123+9"}'],
)
@BOTH
async def test_r6_an_unknown_reference_gets_one_final_sentence(
    stage: Stage, client: Client, stream: bool, arguments: str
) -> None:
    asked = {"id": "r", "type": "function", "function": {"name": RECALL, "arguments": arguments}}
    stage.provider.answer = plays(Say("Hm. ", [asked]), Say("I run it again."))
    heard = await client.ask(hiding(), stream)
    (answer,) = fetched(stage.provider.requests[-1])
    assert final(answer)
    assert answer.count("\n") == 0
    assert (heard.text, heard.finish) == ("Hm. I run it again.", "stop")


async def test_r6_another_conversations_reference_is_unknown_here(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants())
    await client.ask(hiding())
    foreign = refs(stage.provider.requests[0])[0]
    here = hiding(SECOND + f"\n[narrows: rest: ref {foreign}]\n[narrows: rest: ref 123456]")
    stage.provider.answer = plays(
        lambda _: Say(None, [recall(foreign, id_="r1"), recall("123456", id_="r2")]),
    )
    await client.ask([{"role": "user", "content": "Elsewhere."}, *here[2:]])
    answers = fetched(stage.provider.requests[-1])
    assert [final(answer) for answer in answers] == [True, True]
    assert "case" not in "".join(answers)


@pytest.mark.parametrize("key", ["", "order-66"])
@BOTH
async def test_r6_a_model_that_always_recalls_comes_to_an_end(
    stage: Stage, client: Client, stream: bool, key: str
) -> None:
    stage.provider.answer = lambda received: wants("Again. ")(received) if received.path else None  # type: ignore[operator]
    heard = await client.ask(hiding(), stream, extra_headers={"Idempotency-Key": key} if key else {})
    assert (heard.finish, heard.text, heard.calls) == ("length", "Again. " * 5, [])
    requests = list(stage.provider.requests)
    assert len(requests) == 5
    assert [answer.endswith(_LAST) for answer in fetched(requests[-1])] == [False, False, False, True]
    keys = [request.headers.get("Idempotency-Key") for request in requests]
    assert keys == ([key, *(f"{key}-{n}" for n in range(1, 5))] if key else [None] * 5)


# --- R7, R8: where the tool is, and where it is not ---


def named(name: str, count: int) -> list[Json]:
    return [{"type": "function", "function": {"name": name.format(n), "parameters": {}}} for n in range(count)]


@pytest.mark.parametrize(
    ("settings", "tools"),
    [
        pytest.param({}, named("tool_{}", 128), id="128 tools"),
        pytest.param({}, [*TOOLS, *named(RECALL, 1)], id="of that name"),
        pytest.param({"window": 7_000}, openai.omit, id="no tools"),
        pytest.param({"recall": "never"}, TOOLS, id="never"),
    ],
)
async def test_r7_where_the_tool_cannot_be_nothing_promises_it(
    stage: Stage, app: App, settings: Any, tools: Any
) -> None:
    own = await stage.start(preset="keeping", **settings)
    async with client_of(own.base_url) as client:
        await client.hear(hiding(REPORT, SECOND), tools=tools)
    (received,) = stage.provider.requests
    given = [] if tools is openai.omit else [tool["function"]["name"] for tool in tools]
    assert tool_names(received) == given
    assert refs(received) == []
    assert "[narrows: run it again for the rest]" in received.json["messages"][3]["content"]


@BOTH
async def test_r7_a_call_of_the_clients_own_tool_of_that_name_is_the_clients(
    stage: Stage, client: Client, stream: bool
) -> None:
    stage.provider.answer = plays(Say("Mine. ", [recall("482913")]))
    heard = await client.hear(hiding(), stream, tools=named(RECALL, 1))
    assert (heard.calls, heard.finish, len(stage.provider.requests)) == ([RECALL], "tool_calls", 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "none"},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "bash"}}},
        {"parallel_tool_calls": False},
    ],
)
async def test_r7_r8_the_tool_stays_whatever_may_be_called(stage: Stage, client: Client, fields: Any) -> None:
    await client.ask(hiding())
    await client.ask([*hiding(), *answered({"role": "assistant", "content": "Done."})], **fields)
    first, second = stage.provider.requests
    assert extends(first, second)
    assert tool_names(second) == ["bash", "look", RECALL]
    assert {name: second.json[name] for name in fields} == fields


async def test_r7_a_request_without_tools_goes_out_whole_where_it_fits(stage: Stage, app: App) -> None:
    await stage.ask(app, hiding(), tools=TOOLS)
    assert refs(stage.provider.requests[-1])
    body = json.dumps({"model": "m", "messages": [*hiding(), {"role": "user", "content": "Sum it up."}]}).encode()
    assert (await stage.post(app, body)).sent == body


@pytest.mark.parametrize("tools", [[], None], ids=["empty", "null"])
async def test_r7_an_empty_list_of_tools_is_none(stage: Stage, app: App, tools: Any) -> None:
    body = json.dumps({"model": "m", "messages": hiding(), "tools": tools}).encode()
    assert (await stage.post(app, body)).sent == body


async def test_r7_always_hides_in_an_agents_request_without_tools(stage: Stage, app: App) -> None:
    always = await stage.start(preset="keeping", recall="always")
    body = json.dumps({"model": "m", "messages": hiding()}).encode()
    await stage.post(always, body)
    assert refs(stage.provider.requests[-1])


@BOTH
async def test_r7_always_means_in_a_chat_too(stage: Stage, app: App, stream: bool) -> None:
    chat: list[Json] = [{"role": "user", "content": "Tell me all."}]
    for turn in range(6):
        prose = f"In chapter {turn}: " + " ".join(f"Page {n * 7919 % 1000} is about {n * turn}." for n in range(200))
        chat += [{"role": "assistant", "content": prose}, {"role": "user", "content": f"And then, {turn}?"}]
    stage.provider.answer = plays(wants("I look. "), Say("Seen."))
    async with client_of((await stage.start(recall="always")).base_url) as client:
        heard = await client.ask(chat, stream, tools=openai.omit)
    assert (heard.text, heard.calls, heard.finish) == ("I look. Seen.", [], "stop")
    assert [tool_names(request) for request in stage.provider.requests] == [[RECALL]] * 2
    assert fetched(stage.provider.requests[-1]) == [chat[1]["content"]]


async def test_r8_the_tool_is_the_same_bytes_in_every_request(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants("One. "), Say("Seen."), mixed(1), wants("Three. "))
    said = hiding()
    for _ in range(3):
        said += answered((await client.ask(said)).message(), "noon", "nothing")
    definitions = {tools_of(request) for request in stage.provider.requests}
    assert len(definitions) == 1
    assert len(stage.provider.requests) == 5
