"""Recorded sessions over each API: loaded, explained and replayed, each with the same result as in the others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from policies.compact import compact
from policies.dialects import DIALECTS, dialect_of
from proxy.lab import sessions
from proxy.lab.demo import recorded
from proxy.lab.explain import explained, request_from
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import CLIENT_APIS, Session, chained, load, newest_reply, requests
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all
from tests.kit.forms import FORMS, plain
from tests.kit.histories import Json

DAY: Json = plain(sessions.load("long_day"))
SHORT: Json = plain(sessions.load("write_once"))
EACH = pytest.mark.parametrize("dialect", FORMS)
OTHERS = ("anthropic_messages", "openai_responses")


def saved(folder: Path, session: Json, dialect: str, **fields: Any) -> Session:
    """The session as it is loaded from a file in this form."""
    file = folder / f"{dialect}.json"
    file.write_text(json.dumps({**FORMS[dialect](session), **fields}))
    return load(file)


@EACH
def test_a_session_is_known_by_its_shape_and_asks_as_its_clients_do(tmp_path: Path, dialect: str) -> None:
    session, chat = saved(tmp_path, DAY, dialect), recorded("long_day")
    assert (session.dialect, session.model) == (dialect, "gpt-5.4")
    assert len(session.turns) == len(chat.turns)
    ours, theirs = ([[(p.kind, p.tool) for p in said] for said in each.replies()] for each in (session, chat))
    assert ours == theirs
    for body in [*requests(session, "m", marks=False)][::20]:
        assert dialect_of(body) == dialect
        assert newest_reply(dialect, body[DIALECTS[dialect].fields.history]) in (*session.turns, *range(2))


@EACH
def test_a_session_without_tools_gets_the_barest_of_what_it_calls(tmp_path: Path, dialect: str) -> None:
    bare = saved(tmp_path, {**SHORT, "tools": []}, dialect)
    names = {tool["function"]["name"] for tool in SHORT["tools"]}
    assert {tool.get("name") or tool["function"]["name"] for tool in bare.tools} <= names
    assert bare.tools


def test_sessions_of_several_apis_are_no_chain(tmp_path: Path) -> None:
    chat, claude, items = (saved(tmp_path, SHORT, dialect) for dialect in FORMS)
    day = saved(tmp_path, DAY, items.dialect)
    with pytest.raises(ValueError, match="of openai_chat and anthropic_messages; chain those of one API"):
        chained([chat, claude])
    both = chained([items, day])
    assert (both.dialect, both.lead, both.tools) == (items.dialect, items.lead, items.tools)
    assert len(both.turns) == len(items.turns) + len(day.turns)


def test_v7_marks_stand_where_real_clients_set_them(tmp_path: Path) -> None:
    *_, last = requests(saved(tmp_path, SHORT, "anthropic_messages"), "m", marks=True)
    mark = {"cache_control": {"type": "ephemeral"}}
    assert last["system"][-1].items() >= mark.items()
    assert last["tools"][-1].items() >= mark.items()
    assert last["messages"][-1]["content"][-1].items() >= mark.items()
    assert json.dumps(last).count("cache_control") == 3
    empty = {"type": "tool_result", "tool_use_id": "a", "content": ""}
    body = {"messages": [{"role": "user", "content": [empty]}]}
    assert CLIENT_APIS["anthropic_messages"].marked(body) == body


def test_v7_an_empty_result_leaves_the_mark_to_the_block_before_it() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    call = {"type": "tool_use", "id": "b", "name": "run", "input": {}}
    empty, full = ({"type": "tool_result", "tool_use_id": i, "content": text} for i, text in (("b", ""), ("a", "ok")))
    claude = CLIENT_APIS["anthropic_messages"].marked
    talk = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [empty]}]
    assert claude({"messages": talk})["messages"] == [{"role": "assistant", "content": [call | mark]}, talk[1]]
    both = {"role": "user", "content": [full, empty]}
    assert claude({"messages": [talk[0], both]})["messages"][1]["content"] == [full | mark, empty]
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}, {"role": "tool", "content": ""}]
    asked = {"role": "user", "content": [{"type": "text", "text": "go", **mark}]}
    assert CLIENT_APIS["openai_chat"].marked({"messages": chat})["messages"][1:] == [asked, chat[2]]


@EACH
def test_a_request_is_explained_in_the_words_of_its_api(tmp_path: Path, dialect: str) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**FORMS[dialect](SHORT), "store": False}, separators=(",", ":")))
    body = request_from(str(file))
    told, chat = explained(body, "coding-agent"), explained(json.dumps(SHORT).encode(), "coding-agent")
    assert [change.becomes for change in told.edits] == [change.becomes for change in chat.edits] != []
    assert [change.policy for change in told.edits] == [change.policy for change in chat.edits]
    sizes = zip(told.edits, chat.edits, strict=True)
    assert max(abs(ours.tokens.before - theirs.tokens.before) for ours, theirs in sizes) <= 4  # what frames a message
    done = compact(body, recall=True)
    assert done.dialect == dialect
    assert done.body == compact(body, dialect=dialect, recall=True).body
    new = json.loads(done.body)
    for change in told.edits:
        found: Any = new
        for index, key in re.findall(r"\[(\d+)]|\.?(\w+)", change.where):
            found = found[int(index)] if index else found[key]
        assert change.becomes in (found, json.dumps(found, separators=(",", ":"), ensure_ascii=False))


@pytest.mark.parametrize(
    ("body", "dialect"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "openai_chat"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "tool_use"}]}]}, "openai_chat"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "anthropic_messages"),
        ({"messages": [], "system": "Be brief."}, "anthropic_messages"),
        ({"messages": [], "tools": [{"name": "a", "input_schema": {}}]}, "anthropic_messages"),
        ({"input": "hi"}, "openai_responses"),
        ({"input": [], "messages": []}, "openai_chat"),
        ({"messages": 7, "tools": {"a": 1}}, "openai_chat"),
        ({"messages": [7, None, {"content": 7}, {"content": [7, {"type": []}]}], "tools": [7]}, "openai_chat"),
        ([], "openai_chat"),
        (None, "openai_chat"),
    ],
)
def test_the_shape_tells_the_api(body: Any, dialect: str) -> None:
    assert dialect_of(body) == dialect
    assert dialect in DIALECTS


# --- the same bill ---


async def replayed(tmp_path: Path, session: Json, dialect: str, options: Options) -> Report:
    (report,) = await replay_all([saved(tmp_path, session, dialect)], options)
    assert report.faults == 0
    assert report.first_refusal is None
    return report


@pytest.mark.parametrize("model", ["gpt-5.4", "claude-sonnet-5"])
async def test_the_same_session_costs_the_same_in_each_form(tmp_path: Path, model: str) -> None:
    """Under one table of prices and one rule of the cache; only what frames messages and tools differs."""
    options = Options(prices=(model,), cache="prefix")
    chat, *others = [await replayed(tmp_path, SHORT, dialect, options) for dialect in FORMS]
    removed = chat.baseline.tokens - chat.bill.tokens
    assert removed > 0
    for other in others:
        assert other.requests == chat.requests
        assert other.prefix == chat.prefix
        assert other.baseline.tokens - other.bill.tokens == pytest.approx(removed, rel=0.005)
        assert other.input_bill.ratio == pytest.approx(chat.input_bill.ratio, abs=0.02)
        assert other.used_by_later_turns == chat.used_by_later_turns


async def test_r2_a_replay_recalls_what_is_hidden(tmp_path: Path) -> None:
    options = Options(prices=("gpt-5.4",), preset="structural", refetch=1.0)
    cut = {**DAY, "messages": DAY["messages"][:80]}
    found = [(await replayed(tmp_path, cut, dialect, options)).recalls for dialect in FORMS]
    assert {(each.calls, each.refused) for each in found} == {(found[0].calls, 0)}
    assert found[0].calls > 0


async def test_m9_a_replay_bills_for_summaries(tmp_path: Path) -> None:
    options = Options(prices=("gpt-5.4",), preset="rolling", summary_model="gpt-5.4-mini")
    for dialect in OTHERS:
        await replayed(tmp_path, SHORT, dialect, options)
