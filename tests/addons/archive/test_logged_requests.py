"""What the model saw, put together again from the log: byte for byte what the provider received, or why not."""

import asyncio
import json
import threading
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from policies.dialects import DIALECTS
from policies.dialects.segments import TOOLS, frame_of, joined, pieces_of, rest_in, segments
from proxy.addons.archive.sent_requests import ConversationLog
from proxy.addons.pages import log_pages
from proxy.app import App
from proxy.console.cli import command_line
from proxy.lab.provider import Say
from proxy.lab.provider.answers import Wire
from proxy.lab.replay.recorded import requests, session_of
from proxy.memory import MESSAGES, Key, StoredText, open_store
from tests import examples
from tests.addons.pages.test_conversations import opened
from tests.kit.apis import Api, answered, fetched, mixed, plays, wants
from tests.kit.histories import Json
from tests.kit.histories import requests as histories
from tests.kit.prefixes import spaced
from tests.kit.recalling import REPORT, SECOND, call, hiding
from tests.kit.rolling import (
    Office,
    office_of_a_test,  # noqa: F401 - a fixture
    work,
)
from tests.kit.speaking import Speaker, speaking
from tests.kit.stage import Stage, body_of, working
from tests.kit.visiting import Page, bearer, page

openai_chat = DIALECTS["openai_chat"]

HERE = {"extra_headers": {"x-narrows-conversation": "it"}}
IT = "conversations/it"
CANARY = "sk-canary-93?/+7f/credential"
FORMS_OF_CANARY = (
    CANARY.encode(),
    b64encode(CANARY.encode()).rstrip(b"="),
    CANARY.encode().hex().encode(),
    quote(CANARY, safe="").encode(),
)
"""A credential, plain and in the forms in which one might slip through."""

pytestmark = pytest.mark.usefixtures("patient")


def files_below(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


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
        outputs = [f"{turn} {(REPORT if turn % 2 else SECOND)[:2_000]}"] * len(reply.get("tool_calls") or ())
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
        await talk(speaker, 6, hiding(REPORT[:2_000], SECOND[:2_000]))
    received = [each.body for each in stage.provider.requests if each.dialect]
    assert any(fetched(each) for each in stage.provider.requests if each.dialect)
    await same_bytes(stage, app, received)


async def same_bytes(stage: Stage, app: App, received: list[bytes]) -> None:
    """Assert that the log makes these bodies, the requests of a conversation and their rounds in order."""
    count = len(received)

    def is_there(rows: Any) -> bool:
        return sum(row["rounds"] for row in rows["requests"]) == count

    rows = (await settled(stage, app, f"{IT}/requests", is_there)).json["requests"]
    places = [(row["number"], round_) for row in rows for round_ in range(row["rounds"])]
    bodies = [(await page(stage, app, f"{IT}/requests/{n}?round={r}")).body for n, r in places]
    assert bodies == received


async def test_m10_also_where_much_is_edited_and_marks_move(stage: Stage, api: Api) -> None:
    app = await stage.start(history=True)
    session = session_of(json.dumps(api.body(working(9, 30))).encode(), "it", "it")
    form = DIALECTS[api.dialect]
    head = {**form.http.auth("k"), "Content-Type": "application/json", "x-narrows-conversation": "it"}

    async def post(app: App, body: Any) -> str:
        async with stage.client.post(f"{app.base_url}{form.http.path}", data=spaced(body), headers=head) as reply:
            await reply.read()
            return reply.headers["x-narrows-edits"]

    bodies = [*requests(session, "m", True)]
    edits = [await post(app, body) for body in bodies]
    assert edits[-1]
    received = [each.body for each in stage.provider.requests if each.dialect]
    await same_bytes(stage, app, received)
    await app.close(1)
    again = await stage.start(history=True)  # which knows nothing of what is logged
    await post(again, bodies[-1])
    await same_bytes(stage, again, [*received[:-1], stage.provider.requests[-1].body])
    async with opened(f"sqlite:///{stage.path}") as store:
        names = [text.name for text in await store.list_texts(Key("local", "it"), MESSAGES)]
        texts = await store.texts(Key("local", "it"), MESSAGES, names)
    assert sum(map(len, texts.values())) < 1.6 * len(spaced(dict(bodies[-1])))  # and not all that was sent


async def test_m10_also_where_a_summary_stands(office: Office) -> None:
    desk = await office.desk(history=True)
    await office.grow(desk, histories(work(21))[10:16], extra_headers={"x-narrows-conversation": "it"})
    received = [each for each in office.stage.provider.requests if "x-ask" in each.headers]
    assert "<narrows_summary>" in received[-1].body.decode()
    await same_bytes(office.stage, desk.app, [each.body for each in received])


async def test_s1_replicas_that_take_turns_keep_one_log(stage: Stage, redis_url: str) -> None:
    store = f"{redis_url}?prefix={uuid4().hex}"
    apps = [await stage.start(history=True, store=store) for _ in range(2)]
    messages: list[Json] = [*working(3, 20)[:4]]
    for turn in range(6):
        exchange = await stage.ask(apps[turn % 2], messages, ("x-narrows-conversation", "it"))
        reply = json.loads(exchange.reply)["choices"][0]["message"]
        count = len(messages) + 1
        await settled(stage, apps[0], f"{IT}/session", lambda found, count=count: len(found["messages"]) == count)
        messages += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": f"Step {turn}."}]
    await same_bytes(stage, apps[1], [each.body for each in stage.provider.requests if each.dialect])
    lines = (await page(stage, apps[0], f"{IT}/history")).body.splitlines()[1:]
    assert [json.loads(line)["message"] for line in lines[:-1]] == messages[:-2]


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
        form = DIALECTS[api.dialect]
        head = {
            **form.http.auth("k"),
            "Content-Type": "application/json",
            "x-narrows-conversation": f"cut-{number}",
        }
        with suppress(aiohttp.ClientError):
            async with stage.client.post(f"{app.base_url}{form.http.path}", data=body, headers=head) as reply:
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
    assert [(await page(stage, app, place)).code for place in refusals] == ["not_in_log"] * 3
    await stage.ask(app, [*session[:7], {"role": "user", "content": "x" * 55_000}], here)  # drives the oldest out
    for _ in range(500):
        gone = await page(stage, app, f"{IT}/requests/3")
        if gone.status == 404:
            break
        await asyncio.sleep(0.01)
    assert (gone.status, gone.code) == (404, "not_in_log")


async def test_x6_a_full_log_keeps_the_tools_that_its_newest_request_needs(stage: Stage) -> None:
    limit = 60_000
    app = await stage.start(history=True, history_limit=limit)
    for turn in range(12):
        messages = [{"role": "user", "content": f"{turn} {'x' * 9_000}"}]
        exchange = await stage.ask(app, messages, ("x-narrows-conversation", "it"))
    asked = json.loads(exchange.sent)
    assert (await settled(stage, app, f"{IT}/requests/1", asked.__eq__)).body == exchange.sent
    assert len((await page(stage, app, f"{IT}/history")).body) < limit  # the first branches have gone


async def test_x9_what_was_sent_and_is_longer_than_a_log_drives_nothing_out(stage: Stage) -> None:
    app = await stage.start(history=True, history_limit=4_000)
    first = await stage.ask(app, working(1, 5)[:2], ("x-narrows-conversation", "it"))
    await settled(stage, app, f"{IT}/requests/1", json.loads(first.sent).__eq__)
    long = [*working(1, 5)[:2], {"role": "user", "content": "y" * 6_000}]
    await stage.ask(app, long, ("x-narrows-conversation", "it"))
    await app.close(1)
    again = await stage.start(history=True, history_limit=4_000)
    assert (await page(stage, again, f"{IT}/requests/1")).body == first.sent


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
    assert (found.status, found.code) == (409, "log_damaged")


async def test_x6_an_exported_session_is_replayed_and_goes_with_its_conversation(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_KEYS", "a:" + "A" * 43 + "=")
    app = await stage.start(history=True, encryption_key_env="LOG_KEYS", log_level="info")
    session = working(4, 20)
    for end in (2, 4, 7):
        await stage.ask(app, session[:end], ("x-narrows-conversation", "it"), ("Authorization", f"Bearer {CANARY}"))
    mine = ("Authorization", f"Bearer {CANARY}")
    for _ in range(500):
        found = await page(stage, app, f"{IT}/session", mine)
        if found.status == 200 and len(found.json["messages"]) == 8:
            break
        await asyncio.sleep(0.01)
    words = ["export", "it", "--store", f"sqlite:///{stage.path}"]
    monkeypatch.setenv("NARROWS_ENCRYPTION_KEY_ENV", "LOG_KEYS")
    shown = await asyncio.to_thread(CliRunner().invoke, command_line("export"), words)
    assert (shown.exit_code, json.loads(shown.stdout)) == (0, found.json)
    (tmp_path / "session.json").write_text(shown.stdout)
    replay = ["replay", str(tmp_path / "session.json"), "--json"]
    replayed = await asyncio.to_thread(CliRunner().invoke, command_line("replay"), replay)
    assert replayed.exit_code == 0, replayed.output
    places = ("requests", "requests/2", "changes", "history")
    pages = [found.body, *[(await page(stage, app, f"{IT}/{place}", mine)).body for place in places]]
    assert all(pages)
    everything = b"".join(map(Path.read_bytes, files_below(tmp_path))) + b"".join(pages)
    assert not [form for form in FORMS_OF_CANARY if form in everything]
    assert (await page(stage, app, IT, mine, method="DELETE")).status == 204
    assert (await page(stage, app, f"{IT}/session", mine)).status == 404
    assert (await asyncio.to_thread(CliRunner().invoke, command_line("export"), words)).exit_code == 2


async def test_x9_whole_logs_are_put_together_one_at_a_time_and_in_threads(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await stage.start(history=True)
    await stage.ask(app, [{"role": "user", "content": "Go."}], ("x-narrows-conversation", "it"))
    await settled(stage, app, f"{IT}/session", lambda session: session["messages"])
    running, most, on_loop, real = (
        0,
        0,
        list[str](),
        {name: getattr(log_pages, name) for name in ("as_json", "as_diff")},
    )

    async def slowly(*_: Any) -> Json:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return {"messages": []}

    def noted(name: str) -> Any:
        def work(*parts: Any) -> Any:
            on_loop.extend([name] * (threading.current_thread() is threading.main_thread()))
            return real[name](*parts)

        return work

    monkeypatch.setattr(ConversationLog, "session", slowly)
    for name in real:
        monkeypatch.setattr(log_pages, name, noted(name))
    diff = ("Accept", "text/x-diff")
    places = [(f"{IT}/session",), (f"{IT}/changes",), (f"{IT}/changes", diff)] * 3
    answers = await asyncio.gather(*(page(stage, app, *place) for place in places))
    assert {answer.status for answer in answers} == {200}
    assert (most, on_loop) == (1, [])


async def test_m10_what_calls_did_to_files_is_a_diff_and_a_shell_is_named_unseen(stage: Stage) -> None:
    app = await stage.start(history=True)
    steps: list[tuple[str, Json, str]] = [
        ("read_file", {"path": "a.py"}, "1\tone\n2\ttwo\n"),
        ("edit_file", {"path": "a.py", "old_string": "two", "new_string": "2"}, "edited"),
        ("write_file", {"path": "b.py", "content": "new\n"}, "written"),
        ("write_file", {"path": "b.py", "content": "newer\n"}, "written"),
        ("edit_file", {"path": "c.py", "old_string": "x = 1", "new_string": "x = 2"}, "edited"),
        ("apply_patch", {"input": "*** Begin Patch\n*** Update File: d.py\n@@\n-p\n+q\n*** End Patch"}, "Done!"),
        ("apply_patch", {"type": "update_file", "path": "e.py", "diff": "@@\n-p\n+q\n"}, "Done!"),
        ("editor", {"command": "insert", "path": "f.py", "insert_line": 3, "insert_text": "in"}, "Done!"),
        ("bash", {"command": "sed -i s/2/3/ a.py"}, ""),
        ("edit_file", {"path": "a.py", "old_string": "3", "new_string": "4"}, "edited"),
    ]
    messages: list[Json] = [{"role": "user", "content": "Go."}]
    for number, (tool, arguments, output) in enumerate(steps):
        messages += [{"role": "assistant", "content": None, "tool_calls": [call(f"c{number}", tool, **arguments)]}]
        messages += [{"role": "tool", "tool_call_id": f"c{number}", "content": output}]
    await stage.ask(app, messages, ("x-narrows-conversation", "it"))
    found = (await settled(stage, app, f"{IT}/changes", lambda rows: rows["files"])).json
    rows = {row["path"]: [(each["kind"], each["knows"]) for each in row["changes"]] for row in found["files"]}
    assert rows == {
        "a.py": [("edit", "read"), ("edit", "part")],
        "b.py": [("write", "nothing"), ("write", "all")],
        "c.py": [("edit", "part")],
        "d.py": [("patch", "part")],
        "e.py": [("patch", "part")],
        "f.py": [("edit", "part")],
    }
    assert found["unseen_calls"] == [{"message": 17, "tool": "bash"}]
    assert "cannot be seen" in found["note"]
    diff = (await page(stage, app, f"{IT}/changes", ("Accept", "text/x-diff"))).body.decode()
    assert "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in diff
    assert "--- /dev/null\n+++ b/b.py\n" in diff
    assert "-new\n+newer\n" in diff
    assert "-p\n+q\n" in diff


@settings(deadline=None, max_examples=examples(60))
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
