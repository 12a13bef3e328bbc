"""V1-V8 and C1-C5 over each API: what was valid stays valid, what was broken stays what it was, and what triggers."""

import base64
import json
import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policies.context import Context
from policies.dialects import DIALECTS
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.presets import PRESETS, Preset
from policies.text.stubs import MARK
from proxy.lab.provider.signatures import REASONING, THINKING, seal
from proxy.lab.replay.recorded import CLIENT_APIS
from tests import examples
from tests.kit.apis import APIS, Api, entries, text_of
from tests.kit.histories import EAGER, Json, sessions
from tests.kit.prefixes import LIGHT, ask, grow, marks, moved, sent, spaced
from tests.kit.speaking import post
from tests.kit.stage import Exchange, Stage, ends, staged, working

pytestmark = pytest.mark.usefixtures("patient")

ASKED = working(lines=16)[:-1]


def before(exchange: Exchange) -> int:
    """Tokens of the request as the client sent it, as the reply reports them."""
    return int(exchange.headers["x-narrows-tokens-before"])


def after(exchange: Exchange) -> int:
    return int(exchange.headers["x-narrows-tokens-after"])


# --- V1-V3: any history, batches, and what is broken ---


def speakable(messages: Sequence[Json]) -> list[Json]:
    """Without what not every API can say: nothing at all, and thoughts that nobody signed."""
    bare = [{key: value for key, value in message.items() if key != "reasoning_content"} for message in messages]
    return [m | ({} if text_of(m).strip() or m.get("tool_calls") else {"content": "Well."}) for m in bare]


@settings(deadline=None, max_examples=examples(12), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(session=sessions(most=6), model=st.sampled_from(["m", "small", "tiered"]), api=st.sampled_from([*APIS.values()]))
async def test_v1_s2_any_history_stays_valid_and_extends(
    session: list[Json], model: str, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "eager", Preset(EAGER))
        async with staged(tmp_path_factory.mktemp("any") / "narrows.db") as stage:
            grown = await grow(stage, await stage.start(), api, speakable(session), model=model)
    assert {exchange.status for exchange in grown} == {200}
    assert moved(api, grown) == []


async def test_v2_a_cut_at_a_parallel_batch_takes_the_whole_batch(stage: Stage, api: Api) -> None:
    """Every batch has three calls, and the window leaves room for a few of them."""
    said: list[Json] = [{"role": "user", "content": "Go on."}]
    for turn in range(9):
        function = {"name": "bash", "arguments": json.dumps({"command": f"grep -rn word_{turn} ."})}
        calls = [{"id": f"c{n}", "type": "function", "function": function} for n in range(3)]
        said.append({"role": "assistant", "content": None, "tool_calls": calls})
        text = " ".join(f"w{turn}{n}" for n in range(120))
        said += [{"role": "tool", "tool_call_id": call["id"], "content": f"{call['id']} {text}"} for call in calls]
    grown = await grow(stage, await stage.start(window=3_000), api, [*said, {"role": "assistant", "content": "done"}])
    assert {exchange.status for exchange in grown} == {200}
    assert b"left out to fit the window" in grown[-1].sent


LOST = "lost and found " * 60
ODD = ("hello", None, 7, [{"role": "user"}], {"role": "wizard", "content": "hm " * 90}, {"role": 7})


def broken(api: Api) -> Iterator[tuple[Any, Any]]:
    """Histories with a fault, in the API's own form, and what of each is odd by itself."""
    sound = api.body(ASKED)[api.history]
    orphan = {"role": "tool", "tool_call_id": "nobody", "content": LOST}
    yield api.body([*ASKED[:4], orphan, *ASKED[4:]])[api.history], LOST
    for fault in ([*ASKED[:3], *ASKED[4:]], [*ASKED[:4], *ASKED[3:]], [ASKED[3], *ASKED]):
        yield api.body(fault)[api.history], sound[-1]
    for odd in ODD:
        yield [*sound[:2], odd, *sound[3:]], odd
    for content in (7, {"a": [1]}, [7, None, "x", {"type": 8}, {}]):
        yield [{"role": "user", "content": content}, *sound[1:]], content
    yield {"role": "user"}, "user"


async def test_v3_the_clients_error_stays_the_clients(stage: Stage, api: Api) -> None:
    """It is forwarded as it came, and the reply is what the provider says to it."""
    app = await stage.start()
    form = DIALECTS[api.dialect]
    for history, odd in broken(api):
        body = spaced({**api.body(ASKED), api.history: history})
        async with stage.client.post(
            f"{stage.upstream}{form.http.path}", data=body, headers=form.http.auth("k")
        ) as reply:
            direct = await reply.json()
            assert reply.status == 400
        exchange = await post(stage, app, api, body)
        assert (exchange.status, json.loads(exchange.reply)) == (400, direct)
        assert exchange.mode in ("compacted", "untouched")
        assert json.dumps(odd) in json.dumps(json.loads(exchange.sent)[api.history])


async def test_v3_no_body_is_a_fault_of_ours(stage: Stage, api: Api) -> None:
    app = await stage.start()
    whole = spaced(api.body(ASKED))
    role, result = b'"role":  "user"', whole.index(b"src/file_0_0")
    bodies = [
        b"{",
        b"",
        b"null",
        b"[]",
        b'{"model":"m"}',
        whole.replace(b'"model":  "m" ,', b""),
        b"\xef\xbb\xbf" + whole,
    ]
    bodies += [whole.replace(role, role + b', "x": ' + odd) for odd in (b"NaN", b"1E400", b"9" * 4000, b"[" * 5000)]
    bodies += [whole.replace(role, b'"role":"system", ' + role), whole[:result] + b"\xff\xfe" + whole[result:]]
    bodies += [
        whole.replace(b"src/file_0_0", b"\\ud800"),
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"," + whole[1:],
    ]
    for body in bodies:
        exchange = await post(stage, app, api, body)
        assert exchange.status in (200, 400)
        assert exchange.mode in ("untouched", "compacted")


# --- V4: arguments ---


def called(messages: Sequence[Json]) -> list[tuple[str, Json]]:
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


async def test_v4_clipped_arguments_keep_keys_types_and_ids(stage: Stage, api: Api) -> None:
    exchange = await ask(stage, await stage.start(), api, working(12)[:-1])
    assert exchange.status == 200  # so that each result still answers its call
    given, got = called(working(12)[:-1]), called(sent(api, exchange))
    assert [(n, {k: type(v) for k, v in a.items()}) for n, a in given] == [
        (n, {k: type(v) for k, v in a.items()}) for n, a in got
    ]
    changed = [(a[k], b[k]) for (_, a), (_, b) in zip(given, got, strict=True) for k in a if a[k] != b[k]]
    assert changed
    assert all(new.startswith(MARK) and old[:20] not in new for old, new in changed)


async def test_v4_deep_arguments_are_no_fault_of_ours(stage: Stage, api: Api) -> None:
    messages = working()[:-1]
    deep = '{"command":"' + "long text here " * 40 + '","deep":' + "[" * 400 + "]" * 400 + "}"
    messages[2]["tool_calls"][0]["function"]["arguments"] = deep
    exchange = await ask(stage, await stage.start(), api, messages)
    assert exchange.mode == "compacted"


async def test_v4_a_new_write_with_a_reference_of_ours_is_flagged(stage: Stage, api: Api) -> None:
    app = await stage.start()
    wrong = json.dumps({"path": "a.py", "content": f"{MARK} argument of 90 chars left out; it was carried out]"})
    call = {"id": "w", "type": "function", "function": {"name": "write_file", "arguments": wrong}}
    told: list[Json] = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "w", "content": "written"},
    ]
    flagged = [await ask(stage, app, api, messages) for messages in (ASKED, told)]
    later = await ask(
        stage, app, api, [*told, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "?"}]
    )
    assert [e.headers.get("x-narrows-warning") for e in (*flagged, later)] == [None, "marker-in-argument", None]
    assert ("write_file", json.loads(wrong)) in called(sent(api, flagged[1]))


# --- V5-V8: what is not touched ---

THOUGHT = "I think. " * 90
SPOKEN = {"type": "message", "id": "msg_t", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]}
SIGNED: dict[str, list[Json]] = {
    "openai_chat": [{"role": "assistant", "content": "Hm.", "reasoning_content": THOUGHT}],
    "anthropic_messages": [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": THOUGHT, "signature": seal(THINKING, THOUGHT)},
                {"type": "text", "text": "Hm."},
            ],
        }
    ],
    "openai_responses": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal(REASONING, THOUGHT)},
        SPOKEN,
    ],
}


async def test_v6_thoughts_are_the_same_bytes_when_all_around_them_is_shortened(stage: Stage, api: Api) -> None:
    thought: Json = {"role": "assistant", "content": "Hm.", "native": SIGNED[api.dialect]}
    session = [*ASKED[:2], thought, {"role": "user", "content": "Go on."}, *ASKED[2:]]
    exchange = await ask(stage, await stage.start(), api, session)
    assert (exchange.status, exchange.mode) == (200, "compacted")
    (raw,) = (raw for raw in entries(api, exchange.given) if b"I think" in raw or b"encrypted_content" in raw)
    assert raw in entries(api, exchange.sent)


async def test_v7_the_clients_marks_stay_and_are_never_too_many(stage: Stage, api: Api) -> None:
    app, session, grown = await stage.start(), working(12, lines=16), []
    for end in ends(session):
        body = CLIENT_APIS[api.dialect].marked(api.body(session[:end], **LIGHT, model="claude-marked"))
        grown.append(await post(stage, app, api, spaced(dict(body))))
    assert {exchange.status for exchange in grown} == {200}
    assert grown[-1].mode == "compacted"
    assert moved(api, grown) == []
    for exchange in grown:
        assert marks(exchange.given) <= marks(exchange.sent) <= 4
    assert (max(marks(exchange.sent) for exchange in grown) > marks(grown[-1].given)) == (marks(grown[-1].given) > 0)


@pytest.mark.parametrize("api", [APIS["openai_chat"], APIS["anthropic_messages"]], ids=["chat", "messages"])
async def test_v7_marks_of_what_is_folded_move_to_the_stub(stage: Stage, api: Api) -> None:
    """The window leaves out what the client marked. The third API takes no such marks."""
    session, mark = working(14)[:-1], {"cache_control": {"type": "ephemeral"}}
    body = api.body(session, **LIGHT, model="claude-marked")
    marked = [dict(entry) for entry in body[api.history]]
    at = next(i for i, entry in enumerate(marked) if "src/file_2_0" in json.dumps(entry))
    content = marked[at]["content"]
    whole = [{"type": "text", "text": content}] if isinstance(content, str) else content
    marked[at] = {**marked[at], "content": [*whole[:-1], {**whole[-1], **mark}]}
    exchange = await post(stage, await stage.start(window=3_000), api, spaced({**body, api.history: marked}))
    assert exchange.status == 200
    assert b"left out to fit the window" in exchange.sent
    assert b"src/file_2_0" not in exchange.sent
    stub = next(raw for raw in entries(api, exchange.sent) if b"left out to fit the window" in raw)
    assert marks(stub) == 1


async def test_v8_what_people_say_first_and_last_is_whole(stage: Stage, api: Api) -> None:
    long = "".join(f"Rule {n}: mind the {n * 7919 % 1000}. " for n in range(1_200))
    first: list[Json] = [{"role": "system", "content": long}, {"role": "user", "content": long}]
    session = [*first, *working(10)[2:-1]]
    session += [{"role": "assistant", "content": "So?"}, {"role": "user", "content": long[::-1]}]
    app = await stage.start()
    for end in (len(session) - 2, len(session)):
        exchange = await ask(stage, app, api, session[:end])
        assert exchange.mode == "compacted"
        told = sent(api, exchange)
        assert [text_of(message) for message in told[:2]] == [long, long]
        assert text_of(told[-1]) == session[end - 1]["content"]


# --- C: counting and triggers ---


def wordless(turns: int = 8) -> list[Json]:
    """A history of calls and results, and not a word of prose but the first."""
    said = [message for message in working(turns)[:-1] if message["role"] != "system"]
    return [{**message, "content": None} if message["role"] == "assistant" else message for message in said]


async def test_c1_calls_and_results_alone_count_and_trigger(stage: Stage, api: Api) -> None:
    app = await stage.start()
    exchange = await ask(stage, app, api, wordless())
    assert before(exchange) > sum(len(str(message["content"])) for message in wordless()) / 5
    assert exchange.mode == "compacted"
    assert after(exchange) < before(exchange)
    window = await ask(stage, app, api, wordless(12), model="small")
    assert window.status == 200
    assert after(window) <= 3_000 < before(window)


async def test_c2_schemas_system_text_and_arguments_enter_the_estimate(stage: Stage, api: Api) -> None:
    app = await stage.start(calibrate=False)
    long = {"name": "bash", "description": "It runs a command. " * 400, "parameters": {"type": "object"}}
    bare = await ask(stage, app, api, working(2)[:-1])
    tools = await ask(stage, app, api, working(2)[:-1], tools=[{"type": "function", "function": long}])
    system = await ask(stage, app, api, [{"role": "system", "content": "Be careful. " * 400}, *working(2)[1:-1]])
    told = working(2)[:-1]
    told[2]["tool_calls"][0]["function"]["arguments"] = json.dumps({"command": "echo word " * 400})
    arguments = await ask(stage, app, api, told)
    assert min(map(before, (tools, system, arguments))) > before(bare) + 700


LIMITS = {"openai_chat": "max_completion_tokens", "anthropic_messages": "max_tokens"}


async def test_c2_the_reserve_for_the_answer_moves_the_mark(stage: Stage, api: Api) -> None:
    """The same history fits a window, and does not when the client wants much room for the answer."""
    app = await stage.start(window=4_000)
    limit, history = LIMITS.get(api.dialect, "max_output_tokens"), working(5, lines=30)[:-1]
    roomy, tight = [await ask(stage, app, api, history, **{limit: most}) for most in (100, 1_900)]
    assert after(tight) < after(roomy)


async def test_c2_an_image_is_neither_counted_as_text_nor_cut(stage: Stage, api: Api) -> None:
    pixels = base64.b64encode(random.Random(1).randbytes(300_000)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixels}"}}
    session = working(6)[:-1]
    session[3] = {**session[3], "content": [{"type": "text", "text": session[3]["content"]}, image]}
    session[1] = {"role": "user", "content": [image]}
    exchange = await ask(stage, await stage.start(), api, session)
    assert (exchange.status, exchange.mode) == (200, "compacted")
    assert before(exchange) < 15_000
    assert exchange.sent.count(pixels.encode()) == 2


async def test_c4_an_unknown_model_is_no_fault(stage: Stage, api: Api) -> None:
    app = await stage.start(window=3_000)
    for model in ("nobody-knows-this", "", "🙂/" + "x" * 300):
        exchange = await ask(stage, app, api, working(10, lines=20)[:-1], model=model)
        assert exchange.mode == "compacted"
        assert after(exchange) <= 3_000 < before(exchange)


async def test_c4_a_smaller_window_in_the_middle_plans_anew(stage: Stage, api: Api) -> None:
    app = await stage.start()
    session = working(12, lines=16)
    half = ends(session)[8]
    first = [await ask(stage, app, api, session[:end]) for end in ends(session) if end <= half]
    rest = [await ask(stage, app, api, session[:end], model="small") for end in ends(session) if end > half]
    assert {exchange.status for exchange in first + rest} == {200}
    assert rest[0].prefix in ("client-changed", "checkpoint:window", "checkpoint:config")
    assert max(map(after, rest)) <= 3_000
    assert moved(api, rest) == []


async def test_c5_the_window_and_a_price_tier_are_hard_marks(stage: Stage, api: Api) -> None:
    app = await stage.start(reserve=100)
    for model, most in (("small", 0.9 * 2_900), ("tiered", 2_000)):
        grown = await grow(stage, app, api, working(12, lines=16), ("x-narrows-conversation", model), model=model)
        assert {exchange.status for exchange in grown} == {200}
        assert "checkpoint:window" in {exchange.prefix for exchange in grown}
        assert max(map(after, grown)) <= most < before(grown[-1])


# --- law 6 ---


def faulty(conversation: Conversation, context: Context, *, at: int) -> Iterator[Replace]:
    """A policy with a fault."""
    if context.step >= at:
        raise RuntimeError("planted")
    return iter(())


async def test_law_6_a_failure_of_planning_forwards_the_clients_bytes(
    stage: Stage, api: Api, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PRESETS, "broken", Preset((*EAGER, partial(faulty, at=4))))
    app = await stage.start(preset="broken", log_format="json")
    grown = await grow(stage, app, api, working(6))
    fine, failed = grown[:4], grown[4:]
    assert "failed-open" not in {exchange.mode for exchange in fine}
    assert {(e.mode, e.prefix) for e in failed} == {("failed-open", "checkpoint:failed-open")}
    assert all(exchange.sent == exchange.given and exchange.status == 200 for exchange in failed)
    page = app.telemetry.metrics.page().decode()
    assert f'narrows_requests_total{{mode="failed-open",status="2xx"}} {len(failed)}.0' in page
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["failed_open"] * len(failed)
    assert "planted" not in json.dumps(lines)
