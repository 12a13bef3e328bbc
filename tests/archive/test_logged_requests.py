"""What the model saw, put together again from the log: byte for byte what the provider received, or why not."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dialects import openai_chat
from policies.dialects.segments import TOOLS, frame_of, joined, pieces_of, rest_in, segments
from proxy.app import App
from proxy.lab.client_apis import CLIENT_APIS
from proxy.lab.provider import Say
from proxy.lab.provider.answers import Wire
from proxy.lab.replay.recorded import session_of
from proxy.store import MESSAGES, Key, StoredText, open_store
from tests.kit.apis import Api, answered, fetched, mixed, plays, wants
from tests.kit.histories import Json
from tests.kit.recalling import REPORT, SECOND, call, hiding
from tests.kit.speaking import Speaker, speaking
from tests.kit.stage import Stage, body_of, working
from tests.kit.visiting import Page, bearer, page

HERE = {"extra_headers": {"x-narrows-conversation": "it"}}
IT = "conversations/it"

pytestmark = pytest.mark.usefixtures("patient")


async def settled(stage: Stage, app: App, place: str, is_there: Any) -> Page:
    """The page, once what is wanted was written behind the requests."""
    for _ in range(500):
        found = await page(stage, app, place)
        if found.status == 200 and is_there(found.json):
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"it was never written: {found.status} {found.body[:300]!r}")


async def talk(speaker: Speaker, turns: int, messages: list[Json], stream: bool = False) -> list[Json]:
    """An agent that goes on for so many turns; its tools return much."""
    for turn in range(turns):
        heard = await speaker.ask(messages, stream != bool(turn % 2), **HERE)
        reply = heard.message()
        outputs = [f"{turn} {REPORT if turn % 2 else SECOND}"] * len(reply.get("tool_calls") or ())
        messages += answered(reply, *outputs)
    return messages


def agent(turns: int) -> Any:
    """A model that calls tools, recalls what was hidden, and does both at once."""
    busy = [Say(f"Step {n}.", [call("c", "bash", command=f"run {n} λ")]) for n in range(turns)]
    return plays(*busy[:3], wants("I look. "), busy[3], mixed(1), *busy[4:])


async def test_m10_the_bytes_of_each_request_and_round_are_those_that_were_sent(
    stage: Stage, app: App, api: Api
) -> None:
    app = await stage.start(preset="keeping", history=True)
    stage.provider.answer = agent(6)
    async with speaking(api, app.base_url) as speaker:
        await talk(speaker, 6, hiding(REPORT, SECOND))
    received = [each.body for each in stage.provider.requests if each.dialect]
    assert any(fetched(each) for each in stage.provider.requests if each.dialect)
    found = await settled(
        stage, app, f"{IT}/requests", lambda rows: sum(r["rounds"] for r in rows["requests"]) == len(received)
    )
    places = [(row["number"], round_) for row in found.json["requests"] for round_ in range(row["rounds"])]
    assert len(places) > len(found.json["requests"])  # some had rounds
    bodies = [(await page(stage, app, f"{IT}/requests/{n}?round={r}")).body for n, r in places]
    assert bodies == received
    assert all(json.loads(body)["model"] == "m" for body in bodies)


def comparable(api: Api, body: Json) -> list[Json]:
    """The messages of a body. A streaming SDK leaves the places of calls in them."""
    messages = api.messages_in(body)
    for entry in messages:
        for made in entry.get("tool_calls") or ():
            made.pop("index", None)
    return messages


async def test_m10_a_logged_conversation_is_a_recorded_session_with_its_newest_reply(
    stage: Stage, app: App, api: Api
) -> None:
    app = await stage.start(preset="keeping", history=True)
    stage.provider.answer = agent(6)
    for stream in (False, True):
        name = f"it-{stream}"
        headers = {"extra_headers": {"x-narrows-conversation": name}}
        stage.provider.answer = agent(4)
        async with speaking(api, app.base_url) as speaker:
            messages = hiding(REPORT, SECOND)
            for _ in range(4):
                heard = await speaker.ask(messages, stream, **headers)
                whole = [*messages, heard.message()]
                messages += answered(heard.message(), *[REPORT] * 3)
        body = api.body(whole)

        def is_whole(session: Any, body: Json = body) -> bool:
            return len(session[api.history]) == len(body[api.history])

        found = await settled(stage, app, f"conversations/{name}/session", is_whole)
        # as the client returned them; the newest reply, which it has not returned yet, as it would
        assert comparable(api, found.json) == comparable(api, json.loads(json.dumps(body)))
        assert found.json["tools"] == json.loads(json.dumps(body["tools"]))
        assert session_of(found.body, "it", "it").dialect == api.dialect
        lines = (await page(stage, app, f"conversations/{name}/history")).body.splitlines()[1:]
        waiting = [line for line in map(json.loads, lines) if not line.get("returned", True)]
        assert len(waiting) == len(api.entries_of(heard.reply))  # and no reply stands there twice
    assert (await page(stage, app, f"conversations/{name}/session", *bearer("theirs"))).status == 404


async def test_t3_a_reply_that_breaks_off_is_not_logged_as_a_whole_one(stage: Stage, app: App, api: Api) -> None:
    app = await stage.start(preset="keeping", history=True)
    for number, place in enumerate((60, 400, 700, 10**6)):
        cut = Say("A long answer in many pieces. " * 10, [call("c", "bash", command="date")], wire=Wire(die_at=place))
        stage.provider.answer = plays(cut)
        body = json.dumps(api.body(hiding(REPORT), stream=True)).encode()
        form = CLIENT_APIS[api.dialect]
        head = {**form.auth("k"), "Content-Type": "application/json", "x-narrows-conversation": f"cut-{number}"}
        with suppress(aiohttp.ClientError):
            async with stage.client.post(f"{app.base_url}{form.path}", data=body, headers=head) as reply:
                await reply.read()
    await app.close(1)
    app = await stage.start(preset="keeping", history=True)
    waiting = []
    for number in range(4):
        found = await page(stage, app, f"conversations/cut-{number}/history")
        waiting.append(sum(not json.loads(line).get("returned", True) for line in found.body.splitlines()))
    assert [bool(count) for count in waiting] == [False, False, False, True]


async def test_m10_other_branches_and_full_logs(stage: Stage) -> None:
    app = await stage.start(history=True, history_limit=60_000)
    session, here = working(4, 20), ("x-narrows-conversation", "it")
    first = [await stage.ask(app, session[:end], here) for end in (2, 4, 7)]
    edited = [*session[:1], {"role": "user", "content": "Do something else."}]
    other = await stage.ask(app, edited, here)
    asked = json.loads(other.sent)
    assert (await settled(stage, app, f"{IT}/requests/1", asked.__eq__)).body == other.sent
    assert len((await page(stage, app, f"{IT}/requests")).json["requests"]) == 1
    lines = [json.loads(line) for line in (await page(stage, app, f"{IT}/history")).body.splitlines()[1:]]
    before = next(line["name"] for line in lines if line["message"] == session[5])
    for number, exchange in enumerate(first, 1):
        assert (await page(stage, app, f"{IT}/requests/{number}?branch={before}")).body == exchange.sent
    refusals = [f"{IT}/requests/9", f"{IT}/requests/1?branch=none", f"{IT}/requests/1?round=3"]
    assert [(await page(stage, app, place)).code for place in refusals] == ["not_on_record"] * 3
    await stage.ask(app, [*session[:7], {"role": "user", "content": "x" * 55_000}], here)  # drives the oldest out
    for _ in range(500):
        gone = await page(stage, app, f"{IT}/requests/3")
        if gone.status == 404:
            break
        await asyncio.sleep(0.01)
    assert (gone.status, gone.code) == (404, "not_on_record")


async def test_x7_a_log_that_was_changed_gives_no_bytes(stage: Stage) -> None:
    app = await stage.start(history=True)
    sent = await stage.ask(app, working(4, 20)[:7], ("x-narrows-conversation", "it"))
    await settled(stage, app, f"{IT}/requests", lambda rows: rows["requests"])
    assert (await page(stage, app, f"{IT}/requests/3")).body == sent.sent
    key = Key("local", "it")
    store = open_store(f"sqlite:///{stage.path}")
    await store.open()
    texts = await store.list_texts(key, MESSAGES)
    name = next(text.name for text in texts if text.about["index"] == 1)
    (old,) = (await store.texts(key, MESSAGES, [name])).values()
    await store.put_texts(key, MESSAGES, [StoredText(name, old.replace("rename", "delete"), {})])
    await store.close()
    found = await page(stage, app, f"{IT}/requests/3")
    assert (found.status, found.code) == (409, "record_damaged")


@given(body=st.dictionaries(st.text(max_size=6), st.text(max_size=60), max_size=3), cut=st.integers(0, 80))
def test_s3_a_body_is_its_pieces_whatever_changed_in_it(body: dict[str, str], cut: int) -> None:
    messages = [{"role": "user", "content": text * 3} for text in (*body.values(), "λ" * 50)]
    raw = body_of(messages, model="m", **{f"x{name}": value for name, value in body.items()})
    received = openai_chat.split(raw)
    assert received is not None
    texts = dict(enumerate(map(received.raw, range(len(messages))))) | rest_in(frame_of(received))
    texts[TOOLS] = received.tool_list
    changed = raw.replace(b'"user"', b'"tool"', cut % 3).replace("λ".encode(), b"\xce", cut)
    sent = openai_chat.split(changed) or received
    parts = [*segments(sent)]
    assert b"".join(part for _, part in parts) == sent.body
    assert joined([piece for piece, _, _ in pieces_of(parts, texts)], texts) == sent.body
    own = [piece for piece, _, _ in pieces_of(segments(received), texts) if not isinstance(piece, int)]
    assert all(str(piece).isspace() or str(piece).strip() == "," for piece in own)  # what parts messages
