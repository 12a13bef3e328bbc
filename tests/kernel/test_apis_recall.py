"""R1, R2, R6-R8 over each API: whatever was hidden is within the model's reach, and the client never hears of it."""

import json
from typing import Any

import pytest

from policies.tools import RECALL
from proxy.app import App
from proxy.lab.provider import Answer, Received, Say
from tests.kit.apis import Api, answered, extends, fetched, mixed, plays, refs, told, tool_names, tools_of, wants
from tests.kit.histories import Json
from tests.kit.recalling import BOTH, REPORT, SECOND, TOOLS, hiding, recall
from tests.kit.speaking import Speaker, post, speaking
from tests.kit.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")
AWKWARD = (
    json.dumps([{"path": "C:\\a", "said": f'"{n}"\n\\u00e9'} for n in range(60)]),
    "\n".join("".join(map(chr, range(n, 160, 3))) for n in range(30)),
    "".join(f"👩‍👩‍👧 family {n} 漢字 \u202e\ufeff\n" for n in range(60)),
    "".join(f"half \ud83d and \udc00 of {n}\n" for n in range(60)),
    "".join(f"line {n}\r\n\r" for n in range(90)),
    "".join(f"[narrows: rest: ref {n}]\n" for n in range(100_000, 100_060)),
    "  \n\t" + "x y " * 300 + "  \n\n",
)
_LAST = "\n[narrows: this was the last recall in this reply]"


def all_of_them(received: Received) -> Answer:
    """A model that wants back whatever was hidden, the newest first."""
    return Say("I look. ", [recall(ref, id_=f"r{n}") for n, ref in enumerate(reversed(refs(received)))])


async def test_r1_what_was_hidden_comes_back_as_it_was(stage: Stage, app: App, api: Api) -> None:
    stage.provider.answer = plays(all_of_them)
    exchange = await post(stage, app, api, json.dumps(api.body(hiding(*AWKWARD))).encode())
    first, second = stage.provider.requests
    assert exchange.status == 200
    assert not {*AWKWARD} & {message["content"] for message in told(first)}
    assert fetched(second) == [*reversed(AWKWARD)]


@BOTH
async def test_r2_in_the_very_turn_in_which_it_was_cut(stage: Stage, speaker: Speaker, stream: bool) -> None:
    stage.provider.answer = plays(Say("One."), wants())
    whole = hiding()
    await speaker.ask(whole[:-2], stream)
    await speaker.ask(whole, stream)
    before, cut, after = stage.provider.requests
    assert (refs(before), len(refs(cut)), fetched(after)) == ([], 1, [REPORT])


@pytest.mark.parametrize("change", ["restart", "wiped store", "replica"])
async def test_r2_elsewhere_and_later(stage: Stage, app: App, api: Api, change: str) -> None:
    stream = change != "replica"
    said = hiding()
    stage.provider.answer = plays(wants("I look. "), Say("Seen."), wants(part="lines 2-3"))
    async with speaking(api, app.base_url) as speaker:
        said += answered((await speaker.ask(said, stream)).message())
    if change != "replica":
        await app.close(1)
    if change == "wiped store":
        for file in stage.path.parent.glob("narrows.db*"):
            file.unlink()
    async with speaking(api, (await stage.start(preset="keeping")).base_url) as speaker:
        heard = await speaker.ask(said, stream)
    assert heard.text == "Done."
    known = [] if change == "wiped store" else [REPORT]
    assert fetched(stage.provider.requests[-1]) == [*known, "".join(REPORT.splitlines(keepends=True)[1:3])]
    assert heard.prefix == ("extended" if known else "checkpoint:replayed")
    assert extends(stage.provider.requests[1], stage.provider.requests[2]) == bool(known)


BAD = ('{"ref": "000001"}', '{"ref": ""}', "{}", '{"ref": null}', '{"ref": ["x", {}]}', '{"ref": "1234567890123+9"}')


@BOTH
async def test_r6_an_unknown_reference_gets_one_final_sentence(stage: Stage, speaker: Speaker, stream: bool) -> None:
    functions = [{"name": RECALL, "arguments": arguments} for arguments in BAD]
    asked = [{"id": f"r{n}", "type": "function", "function": function} for n, function in enumerate(functions)]
    stage.provider.answer = plays(Say("Hm. ", asked), Say("I run it again."))
    heard = await speaker.ask(hiding(), stream)
    answers = fetched(stage.provider.requests[-1])
    assert ["do not retry, another command or range may show it" in answer for answer in answers] == [True] * len(BAD)
    assert not any("\n" in answer for answer in answers)
    assert (heard.text, heard.finish) == ("Hm. I run it again.", "stop")


async def test_r6_another_conversations_reference_is_unknown_here(stage: Stage, speaker: Speaker) -> None:
    stage.provider.answer = plays(wants())
    await speaker.ask(hiding())
    foreign = refs(stage.provider.requests[0])[0]
    here = hiding(SECOND + f"\n[narrows: rest: ref {foreign}]\n[narrows: rest: ref 123456]")
    stage.provider.answer = plays(lambda _: Say(None, [recall(foreign, id_="r1"), recall("123456", id_="r2")]))
    await speaker.ask([{"role": "user", "content": "Elsewhere."}, *here[2:]])
    answers = fetched(stage.provider.requests[-1])
    assert ["do not retry" in answer for answer in answers] == [True, True]
    assert "case" not in "".join(answers)


@pytest.mark.parametrize(("key", "stream"), [("", False), ("order-66", True)], ids=["whole", "stream"])
async def test_r6_a_model_that_always_recalls_comes_to_an_end(
    stage: Stage, speaker: Speaker, key: str, stream: bool
) -> None:
    stage.provider.answer = plays(*[wants("Again. ")] * 9)
    heard = await speaker.ask(hiding(), stream, extra_headers={"Idempotency-Key": key} if key else {})
    assert (heard.finish, heard.text, heard.calls) == ("length", "Again. " * 5, [])
    requests = list(stage.provider.requests)
    assert [request.violation for request in requests] == [None] * 5
    assert [answer.endswith(_LAST) for answer in fetched(requests[-1])] == [False, False, False, True]
    keys = [request.headers.get("Idempotency-Key") for request in requests]
    expected = [key, *(f"{key}-{n}" for n in range(1, 5))]
    assert keys == expected if key else len({*keys} - {None}) in (0, 5)


OWN: Json = {"type": "function", "function": {"name": RECALL, "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("settings", "tools"),
    [
        pytest.param({}, [*TOOLS, OWN], id="of that name"),
        pytest.param({"window": 7_000, "reserve": 3_500}, None, id="no tools"),
        pytest.param({"recall": "never"}, TOOLS, id="never"),
    ],
)
async def test_r7_where_the_tool_cannot_be_nothing_promises_it(
    stage: Stage, api: Api, app: App, settings: Any, tools: Any
) -> None:
    own = await stage.start(preset="keeping", **settings)
    async with speaking(api, own.base_url) as speaker:
        await speaker.hear(hiding(REPORT, SECOND), tools=tools)
    (received,) = stage.provider.requests
    assert received.violation is None
    assert tool_names(received) == [tool["function"]["name"] for tool in tools or ()]
    assert refs(received) == []
    assert "[narrows: run it again for the rest]" in told(received)[3]["content"]


@BOTH
async def test_r7_a_call_of_the_clients_own_tool_of_that_name_is_the_clients(
    stage: Stage, speaker: Speaker, stream: bool
) -> None:
    stage.provider.answer = plays(Say("Mine. ", [recall("482913")]))
    heard = await speaker.hear(hiding(), stream, tools=[OWN])
    assert (heard.calls, heard.finish, len(stage.provider.requests)) == ([RECALL], "tool_calls", 1)


async def test_r7_r8_the_tool_stays_whatever_may_be_called(stage: Stage, speaker: Speaker) -> None:
    await speaker.ask(hiding())
    later = [*hiding(), *answered({"role": "assistant", "content": "Done."})]
    for fields in speaker.api.choices.values():
        await speaker.ask(later, **fields)
        received = stage.provider.requests[-1]
        assert extends(stage.provider.requests[0], received)
        assert tool_names(received) == ["bash", "look", RECALL]
        assert {name: received.json[name] for name in fields} == fields


async def test_r7_a_request_without_tools_goes_out_whole_where_it_fits(stage: Stage, speaker: Speaker) -> None:
    await speaker.ask(hiding())
    assert refs(stage.provider.requests[-1])
    await speaker.hear([*hiding(), {"role": "user", "content": "Sum it up."}], tools=None)
    assert stage.provider.requests[-1].body == speaker.request_body


@BOTH
async def test_r7_always_means_in_a_chat_too(stage: Stage, api: Api, app: App, stream: bool) -> None:
    chat: list[Json] = [{"role": "user", "content": "Tell me all."}]
    for turn in range(6):
        prose = f"In chapter {turn}: " + " ".join(f"Page {n * 7919 % 1000} is about {n * turn}." for n in range(200))
        chat += [{"role": "assistant", "content": prose}, {"role": "user", "content": f"And then, {turn}?"}]
    stage.provider.answer = plays(wants("I look. "), Say("Seen."))
    async with speaking(api, (await stage.start(recall="always")).base_url) as speaker:
        heard = await speaker.ask(chat, stream, tools=None)
    assert (heard.text, heard.calls, heard.finish) == ("I look. Seen.", [], "stop")
    assert [tool_names(request) for request in stage.provider.requests] == [[RECALL]] * 2
    assert fetched(stage.provider.requests[-1]) == [chat[1]["content"]]


async def test_r8_the_tool_is_the_same_bytes_in_every_request(stage: Stage, speaker: Speaker) -> None:
    stage.provider.answer = plays(wants("One. "), Say("Seen."), mixed(1), wants("Three. "))
    said = hiding()
    for _ in range(3):
        said += answered((await speaker.ask(said)).message(), "noon", "nothing")
    assert len({tools_of(speaker.api, request.body) for request in stage.provider.requests}) == 1
    assert [request.violation for request in stage.provider.requests] == [None] * 5
