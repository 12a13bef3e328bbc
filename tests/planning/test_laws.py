"""The laws as properties of compactions of generated histories; test_planted_faults shows that each can fail."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import get_args

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policies.compact import Compacted
from policies.context import Aim
from policies.dialects import DIALECTS
from policies.dialects.openai_chat.request import TOOL
from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold, Replace
from policies.money.prices import Budget
from policies.recall import answer, original, read
from policies.text.stubs import MARK, refs_named
from policies.tools import RECALL
from proxy.lab.provider import PREFIX, find_violation
from tests import examples
from tests.kit.histories import (
    ROOMY,
    TIGHT,
    Json,
    body_of,
    eagerly,
    recalling,
    refs_in,
    requests,
    sent_messages,
    sessions,
)

openai_chat = DIALECTS["openai_chat"]

BUDGETS = st.sampled_from([ROOMY, TIGHT, replace(TIGHT, mark="context")])
AIMS = st.sampled_from(get_args(Aim))
thorough = settings(
    deadline=None,
    max_examples=examples(20),
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # a history shrinks for minutes and says little more
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def without_tool(done: Compacted) -> bytes:
    """The new body without the one thing that is added: the recall tool, last of the tools."""
    if not done.settings.recall:
        return done.body
    before, found, after = done.body.partition(b"," + TOOL)
    assert found
    assert json.loads(done.body)["tools"] == [*json.loads(before + after)["tools"], json.loads(TOOL)]
    return before + after


def check_law_1(messages: list[Json], done: Compacted) -> None:
    """Untouched messages are the client's bytes; in a touched one only the touched leaves differ."""
    request, bare = openai_chat.split(body_of(messages)), without_tool(done)
    assert request is not None
    if not done.plan.edits:
        assert bare == request.body
        return
    assert {**json.loads(bare), "messages": 0} == {**json.loads(request.body), "messages": 0}
    touched = {
        done.conversation.blocks[done.conversation.index[e.at]].path for e in done.plan.edits if not isinstance(e, Fold)
    }
    if any(isinstance(edit, Fold) for edit in done.plan.edits):
        return
    for i, (old, new) in enumerate(zip(messages, sent_messages(done), strict=True)):
        paths = {path[1:] for path in touched if path[0] == i}
        if not paths:
            assert request.raw(i) in done.body
        assert _blanked(old, paths) == _blanked(dict(new), paths)
        assert list(old) == list(new)


def _blanked(message: Json, paths: set[tuple[str | int, ...]]) -> Json:
    copy = json.loads(json.dumps(message))
    for path in paths:
        holder = copy
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = None
    return copy


def check_law_2(steps: list[Compacted]) -> None:
    """Each request extends the one before, byte for byte, but at a declared tail cut or checkpoint."""
    for before, after in pairwise(steps):
        old = [json.dumps(m) for m in sent_messages(before)]
        new = [json.dumps(m) for m in sent_messages(after)]
        reason = after.plan.reason
        if reason.startswith("checkpoint:"):
            continue
        same = len(old)
        if reason == "tail-cut":
            turn = before.conversation.steps - 2
            first = before.conversation.blocks[before.conversation.ends[turn]].message if turn >= 0 else 0
            same = sum(1 for i in range(first) if i not in _gone(before))
        assert new[:same] == old[:same]


def _gone(done: Compacted) -> set[int]:
    """The messages that folds took out of the request."""
    index, blocks = done.conversation.index, done.conversation.blocks
    folds = [edit for edit in done.plan.edits if isinstance(edit, Fold)]
    return {
        i for fold in folds for i in range(blocks[index[fold.first]].message + 1, blocks[index[fold.last]].message + 1)
    }


def check_law_3(done: Compacted) -> None:
    """Whatever is hidden stands whole in the same request, or can be recalled from it byte for byte."""
    hidden = {edit.at: edit for edit in done.plan.edits if isinstance(edit, Replace)}
    for edit in done.plan.edits:
        if isinstance(edit, Fold):
            _check_run(done, edit)
        elif edit.needs:
            _check_pointer(done, edit, hidden)
            assert _originals(done, edit.otherwise) == [_block(done, edit.at).text]
        elif _block(done, edit.at).tool == RECALL:  # collapsed, or cut where nothing else was left
            _check_collapsed(done, edit)
        else:
            assert {*_originals(done, edit.text)} == {_block(done, edit.at).text}


def _block(done: Compacted, anchor: str) -> Block:
    return done.conversation.blocks[done.conversation.index[anchor]]


def _originals(done: Compacted, stub: str) -> list[str | None]:
    """What the references in a stub stand for, read at once and read page by page."""
    refs = refs_in(stub)
    whole = [original(done.conversation, ref) for ref in refs]
    assert [followed(done.conversation, ref) for ref in refs] == whole
    return whole


def _check_run(done: Compacted, fold: Fold) -> None:
    conversation = done.conversation
    (found,) = _originals(done, fold.text)
    said = (f"== {b.kind} {b.tool}".rstrip() + f" ==\n{b.text}" for b in _run(conversation, fold))
    assert found == "\n".join(said)


def _run(conversation: Conversation, fold: Fold) -> tuple[Block, ...]:
    return conversation.blocks[conversation.index[fold.first] : conversation.index[fold.last] + 1]


def _check_pointer(done: Compacted, edit: Replace, hidden: Mapping[str, Replace]) -> None:
    text, at = _block(done, edit.at).text, edit.needs
    folds = [fold for fold in done.plan.edits if isinstance(fold, Fold)]
    while at in hidden:
        at = hidden[at].needs
    assert at, "the copy was shortened"
    assert _block(done, at).text == text
    assert not any(_block(done, at) in _run(done.conversation, fold) for fold in folds)


def _check_collapsed(done: Compacted, edit: Replace) -> None:
    """What was recalled is recalled again, with the same words."""
    block = _block(done, edit.at)
    assert block.answers is not None
    asked = read(done.conversation.blocks[block.answers].text)
    assert asked.ref in refs_in(edit.text)
    assert asked.part in edit.text
    assert answer(done.conversation, json.dumps({"ref": asked.ref, "part": asked.part})).text == block.text


def followed(conversation: Conversation, ref: str) -> str:
    """All that a reference stands for, as a model reads it: page by page, as each page says."""
    text, part = "", ""
    while True:
        said = answer(conversation, json.dumps({"ref": ref, "part": part})).text
        more = re.search(r'\n\[narrows: chars \d+-\d+ of \d+; go on with part "([^"]*)"[^\n]*\]\Z', said)
        if more is None:
            return text + said
        text, part = text + said[: more.start()], more[1]


def check_law_4(messages: list[Json], done: Compacted) -> None:
    """What a strict provider accepts it still accepts; arguments keep their keys and types."""
    assert find_violation({"model": "m", "messages": messages}, PREFIX) is None
    assert find_violation(json.loads(done.body), PREFIX) is None
    if any(isinstance(edit, Fold) for edit in done.plan.edits):
        return
    for old, new in zip(messages, sent_messages(done), strict=True):
        for a, b in zip(old.get("tool_calls") or (), new.get("tool_calls") or (), strict=True):
            assert a["id"] == b["id"]
            assert _shape(json.loads(a["function"]["arguments"])) == _shape(json.loads(b["function"]["arguments"]))


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shape(inner) for inner in value]
    return type(value).__name__


def check_law_5(messages: list[Json], done: Compacted) -> None:
    """System text, what people wrote, opaque fields; the newest results too where the request fits without."""
    sent = sent_messages(done)
    for role in ("system", "developer", "user"):
        said = [m for m in messages if m["role"] == role]
        kept = [m for m in sent if m["role"] == role and not str(m["content"]).startswith(MARK)]
        assert said == kept
    for message in sent:
        if "reasoning_content" in message:
            assert message["reasoning_content"] in [m.get("reasoning_content") for m in messages]
    if done.plan.reason != f"checkpoint:{done.settings.budget.mark}":
        first = _after_last_answer(messages)
        lossless = {_block(done, e.at).message for e in done.plan.edits if isinstance(e, Replace) and e.lossless}
        for message, after in enumerate(sent[len(sent) - len(messages[first:]) :], first):
            assert messages[message] == after or message in lossless


def _after_last_answer(messages: list[Json]) -> int:
    return max((i + 1 for i, m in enumerate(messages) if m["role"] == "assistant"), default=0)


@settings(thorough, max_examples=examples(25))
@given(sessions(), BUDGETS, AIMS)
def test_law_1_2_3_4_5_s1_s2_v1_v4_v8_growing_histories_keep_the_laws(
    session: list[Json], budget: Budget, aim: Aim
) -> None:
    steps = [eagerly(request, budget, aim=aim) for request in requests(session)]
    check_law_2(steps)
    for request, step in zip(requests(session), steps, strict=True):
        check_law_1(request, step)
        check_law_3(step)
        check_law_4(request, step)
        check_law_5(request, step)
    check_law_1(session, whole := eagerly(session, budget, aim=aim))
    assert whole.body == eagerly(session, budget, aim=aim).body


@thorough
@given(BUDGETS.flatmap(lambda budget: st.tuples(recalling(6, budget), st.just(budget))), AIMS)
def test_law_3_s2_a_session_with_recalls_keeps_the_laws(given: tuple[list[Json], Budget], aim: Aim) -> None:
    session, budget = given
    steps = [eagerly(request, budget, aim=aim) for request in requests(session)]
    check_law_2(steps)
    for request, step in zip(requests(session), steps, strict=True):
        check_law_3(step)
        check_law_4(request, step)
        check_law_5(request, step)


@thorough
@given(sessions(), BUDGETS)
def test_r7_law_1_without_the_tool_no_stub_promises_it_and_below_the_floor_the_bytes_are_the_clients(
    session: list[Json], budget: Budget
) -> None:
    for request in requests(session):
        done = eagerly(request, budget, recall=False)
        for edit in done.plan.edits:
            assert not refs_named(edit.text)
            assert isinstance(edit, Fold) or not refs_named(edit.otherwise)
            assert isinstance(edit, Fold) or _block(done, edit.at).kind == "result"
    roomy = Budget(100_000, 1_000, 90_000, 50_000, floor=50_000)
    assert without_tool(eagerly(session, roomy)) == body_of(session)
    assert eagerly(session, roomy, recall=False).body == body_of(session)


def test_law_4_v1_a_fold_never_parts_a_batch_that_something_stands_in() -> None:
    """A person's words between two results of one batch: lenient providers take that, and it stays as it came."""
    messages: list[Json] = [{"role": "user", "content": "go"}]
    for turn in range(12):
        calls = [
            {"id": name, "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
            for name in ("a", "b")
        ]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": f"line {turn}\n" * 40},
            {"role": "user", "content": "(a picture of it)"},
            {"role": "tool", "tool_call_id": "b", "content": f"other {turn}\n" * 40},
        ]
    sent = sent_messages(eagerly(messages, TIGHT))
    called = [call["id"] for message in sent for call in message.get("tool_calls") or ()]
    assert sorted(called) == sorted(m["tool_call_id"] for m in sent if m["role"] == "tool")


def test_law_6_many_repeats_of_one_output_are_followed_to_the_copy_that_stands() -> None:
    messages: list[Json] = [{"role": "user", "content": "go"}]
    for _ in range(3):
        calls = [
            {"id": f"c{i}", "type": "function", "function": {"name": "bash", "arguments": '{"command": "git status"}'}}
            for i in range(350)
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": f"c{i}", "content": "nothing to commit\n" * 20} for i in range(350)
        ]
    assert eagerly(messages).plan.edits
