"""Reuse: what stands above is named, all the rest stays, and work grows with what is new."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.compact import compact
from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.planning.plan import plan
from policies.presets import PRESETS
from policies.recall import original
from policies.rules import reuse
from policies.rules.clip import Clip
from policies.rules.dedupe import Dedupe
from policies.rules.offload import Offload
from policies.rules.reuse import LinePlaces, Reuse, landmarks
from policies.rules.tidy import Tidy
from policies.text.lines import layout_of
from policies.text.stubs import refs_named
from tests import examples
from tests.kit.histories import CHEAP, ROOMY, Json, body_of, requests
from tests.kit.talk import call, calls, conversation_of, gives, letters, runs, says, setup, user

NOTE = re.compile(r"\[narrows: lines? (\d+)(?:-(\d+))? of (?:`(.+)`(?: #(\d+))? above|(it))(?:; ref \d+)?\]")
FILE = "\n".join(f"def name_{i}(text): return text[{i}:]" for i in range(60))
PARTS = st.lists(
    st.sampled_from([FILE[:700], FILE[300:1200], FILE[1100:], "new\nlines\n" * 3, "\n\n", "x"]), max_size=4
)
SESSIONS = st.lists(PARTS.map("\n".join), min_size=1, max_size=6)


def talk(outputs: Sequence[str]) -> list[Json]:
    return [user("go"), *(m for i, text in enumerate(outputs) for m in runs(f"cat {i % 3}", text)), says("done")]


def rebuilt(conversation: Conversation, at: int, text: str) -> str:
    """The output that a reader makes of a text and of the outputs that it names."""
    lines, source = list[str](), -1
    for line in text.split("\n"):
        if found := NOTE.fullmatch(line):
            if not found[5]:
                named = [
                    i
                    for i in range(at)
                    if conversation.blocks[i].kind == "result" and _command(conversation, i) == found[3]
                ]
                source = named[int(found[4] or 1) - 1]
            first, last = int(found[1]), int(found[2] or found[1])
            lines += conversation.blocks[source].text.split("\n")[first - 1 : last]
        else:
            lines.append(line)
    return "\n".join(lines)


def _command(conversation: Conversation, at: int) -> str:
    call = conversation.blocks[at].answers
    assert call is not None
    return conversation.blocks[call].text.split('"')[3]


@settings(deadline=None, max_examples=examples(60))
@given(SESSIONS)
def test_an_output_is_rebuilt_from_what_its_references_name(outputs: list[str]) -> None:
    conversation = conversation_of(*talk(outputs))
    for edit in plan(conversation, setup(Reuse(lines=2, saves=4))).edits:
        assert isinstance(edit, Replace)
        at = conversation.index[edit.at]
        assert rebuilt(conversation, at, edit.text) == conversation.blocks[at].text
        assert [original(conversation, ref) for ref in refs_named(edit.text)] == [conversation.blocks[at].text]


@settings(deadline=None, max_examples=examples(40))
@given(SESSIONS)
def test_a_request_that_extends_another_is_sent_as_its_extension(outputs: list[str]) -> None:
    lossless = setup(*PRESETS["lossless"].policies)
    before: dict[int, str] = {}
    for request in requests(talk(outputs)):
        planned = plan(conversation := conversation_of(*request), lossless)
        edits = {conversation.index[e.at]: e.text for e in planned.edits if isinstance(e, Replace)}
        assert planned.reason == ""
        assert before.items() <= edits.items()
        assert all(at in before or at >= conversation.ends[-2] for at in edits)
        before = edits


def test_only_the_output_that_arrives_is_edited_and_at_once() -> None:
    request = requests(talk([FILE, f"new\n{FILE[:900]}"]))[2]
    done = compact(body_of(request), policies=(Reuse(lines=3, saves=10),), prices=CHEAP, budget=ROOMY, recall=True)
    [edit] = done.plan.edits
    assert done.conversation.index[edit.at] == len(done.conversation.blocks) - 1  # type: ignore[union-attr]
    assert done.plan.reason == ""


def test_what_does_not_stand_is_not_referred_to() -> None:
    part = FILE[:900]
    conversation = conversation_of(user("go"), *runs("a", FILE), *runs("b", part), *runs("c", f"{part}\nnew"))
    at_first = plan(conversation, setup(Reuse(lines=3, saves=10)))
    assert [conversation.index[edit.at] for edit in at_first.edits if isinstance(edit, Replace)] == [4, 6]
    taken = Replace(conversation.blocks[2].anchor, "gone", "test")
    context = Context(step=3, prices=CHEAP, budget=ROOMY, count=letters, recall=True, edits={2: taken})
    [edit] = Reuse(lines=3, saves=10)(conversation, context)
    assert edit.uses == (conversation.blocks[4].anchor,)
    assert not list(
        Reuse(lines=3, saves=10)(
            conversation, Context(step=3, prices=CHEAP, budget=ROOMY, count=letters, folded={2, 4})
        )
    )


def test_what_is_referred_to_is_as_young_as_the_newest_reference() -> None:
    policies = (Dedupe(over=60), Reuse(lines=3, saves=10), Offload(over=40, keep=2, keep_files=2, relevant_tokens=5))
    quiet = [message for i in range(3) for message in runs(f"true {i}", f"{i}")]

    def offered(again: str, after: int) -> bool:
        history = [user("go"), *runs("cat a.py", FILE), *runs("x", "y"), *runs("sed -n 1,20p a.py", again), *quiet]
        state = plan(conversation_of(*history[: 7 + 2 * after]), setup(*policies)).state
        return 2 in state.offers or 2 in state.edits

    assert offered("nothing of it", 1)
    assert not offered(FILE[:900], 1)
    assert offered(FILE[:900], 2)


def test_an_output_that_another_points_to_is_not_cut_before_the_model_sees_both() -> None:
    """With `first_sight` a large output may be cut as it arrives, but a file that arrives with it stays in sight."""
    text = "\n".join(f"{FILE}\nrow {i}" for i in range(8))
    parallel = [user("go"), calls("grep -rn name .", "cat a.py"), gives(text), gives(FILE, "call_1")]
    eager = PRESETS["eager"]
    state = plan(conversation_of(*parallel), setup(*eager.policies, exceptions=eager.exceptions)).state
    assert {at: edit.by for at, edit in state.edits.items()} == {4: "reuse"}
    alone = plan(
        conversation_of(*parallel[:1], *runs("grep -rn name .", text)),
        setup(*eager.policies, exceptions=eager.exceptions),
    )
    assert [edit.by for edit in alone.edits] == ["offload"]


def test_a_file_that_was_written_again_stays_while_a_newer_output_points_to_it() -> None:
    write = call("call_1", "write_file", {"path": "a.py", "content": "x = 1"})
    both = calls("cat a.py")
    both["tool_calls"].append(write)
    for again, stays in ((FILE[:900], True), ("other", False)):
        history = [
            user("go"),
            *runs("cat a.py", FILE),
            both,
            gives(again),
            gives("written", "call_1"),
            *runs("ls", "x"),
        ]
        state = plan(conversation_of(*history), setup(*PRESETS["coding-agent"].policies)).state
        assert (2 not in {**state.offers, **state.edits}) == stays


def test_an_offer_waits_while_something_new_refers_to_its_block() -> None:
    def offers(conversation: Conversation, context: Context) -> Iterator[Replace]:
        if context.step == 3:
            yield Replace(conversation.blocks[2].anchor, "gone", "test")

    history = [user("go"), *runs("a", FILE), *runs("b", FILE[::-1]), *runs("c", FILE)]
    pointing = setup(Dedupe(over=60), offers)
    alone = plan(conversation_of(*history[:5], *runs("c", FILE[1:])), pointing)
    assert 2 in {**alone.state.offers, **alone.state.edits}
    planned = plan(conversation_of(*history), pointing)
    assert 2 not in planned.state.offers
    assert [edit.by for edit in planned.edits] == ["dedupe"]


@pytest.mark.parametrize("line", ["the same line in every output", "}"])
def test_work_grows_with_the_lines_of_the_output_whatever_they_repeat(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    end = reuse._end

    def counted(*arguments: Any) -> int:
        nonlocal compared
        stop = end(*arguments)
        compared += 1 + stop - int(arguments[1])
        return stop

    monkeypatch.setattr(reuse, "_end", counted)
    outputs = [f"{i}\n" + f"{line}\n" * (20 + i % 7) for i in range(300)]
    conversation = conversation_of(user("go"), *(m for i, text in enumerate(outputs) for m in runs(f"cat {i}", text)))
    plan(conversation, setup(Reuse(lines=3, saves=10)))
    assert compared <= 8 * sum(len(text.split("\n")) for text in outputs)


def test_each_source_is_named_once_however_often_two_of_them_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []
    name = reuse._name
    monkeypatch.setattr(reuse, "_name", lambda *arguments: named.append(arguments[1]) or name(*arguments))
    left, right = ([f"{side} line {i} {'x' * 40}" for i in range(300)] for side in ("left", "right"))
    mixed = [line for i in range(0, 300, 3) for line in (*left[i : i + 3], *right[i : i + 3])]
    texts = ("\n".join(lines) for lines in (left, right, mixed))
    history = [user("go"), *(m for i, text in enumerate(texts) for m in runs(f"make {i}", text))]
    [edit] = plan(conversation_of(*history), setup(Reuse(lines=3, saves=10))).edits
    assert isinstance(edit, Replace)
    assert len(edit.text.split("\n")) == 200
    assert edit.text.endswith("lines 298-300 of `make 1` above]")
    assert named == [2, 4]


def test_an_output_that_goes_leaves_no_place_behind() -> None:
    lines = LinePlaces()
    lines.add(2, FILE)
    before = deepcopy(lines)
    lines.add(4, f"left line\n{FILE}\nleft line")
    assert list(lines.before(6, "left line")) == [(4, 0, 1)]
    assert list(lines.before(4, "left line")) == []
    lines.remove(4, f"left line\n{FILE}\nleft line")
    assert lines == before
    text = "ab\nlong enough\n  }  \nlast one"
    assert [place[:2] for place in landmarks(text, layout_of(text))] == [(3, 2), (21, 4)]


# --- numbers before lines, escaped texts, texts that calls wrote ---


def numbered(text: str, first: int = 1, form: str = "{:>6}\t{}") -> str:
    return "\n".join(form.format(n, line) for n, line in enumerate(text.split("\n"), first))


def last_output(*messages: Json, policies: tuple[Reuse, ...] = (Reuse(lines=3, saves=10),)) -> str:
    """The last output as it is sent."""
    conversation = conversation_of(user("go"), *messages)
    edits = {e.at: e.text for e in plan(conversation, setup(*policies)).edits if isinstance(e, Replace)}
    last = conversation.blocks[-1]
    return edits.get(last.anchor, last.text)


def without_ref(text: str) -> str:
    return re.sub(r"; ref \d+", "", text)


LINES = FILE.split("\n")


@pytest.mark.parametrize("form", ["{:>6}\t{}", "{:>6}→{}", "{}\t{}", "{}: {}", "{}:{}", "{:>4} | {}"])
def test_lines_under_other_numbers_are_the_same_lines(form: str) -> None:
    read = runs("cat -n a.py", numbered(FILE, 1, form))
    assert without_ref(last_output(*read, *runs("b", numbered(FILE, 8, form)))) == (
        "[narrows: lines 8-67 here: lines 1-60 of `cat -n a.py` above]"
    )
    assert without_ref(last_output(*read, *runs("b", FILE))) == "[narrows: lines 1-60 of `cat -n a.py` above]"
    part = numbered("\n".join(LINES[19:40]), 20, form)
    assert without_ref(last_output(*runs("cat a.py", FILE), *runs("b", part))) == (
        "[narrows: lines 20-40 of `cat a.py` above]"
    )


def test_a_line_of_a_part_is_named_by_the_number_that_stands_before_it() -> None:
    part = numbered("\n".join(LINES[19:50]), 20)
    sent = last_output(*runs("sed", part), *runs("b", numbered("\n".join(LINES[29:40]), 30)))
    assert without_ref(sent) == "[narrows: lines 30-40 of `sed` above]"


def test_numbers_that_leave_lines_out_do_not_stand_for_a_range() -> None:
    gaps = "\n".join(f"{2 * n + 1}:{line}" for n, line in enumerate(LINES))
    for first, second in ((FILE, gaps), (gaps, FILE)):
        assert last_output(*runs("a", first), *runs("b", second)) == second


def test_numbers_that_name_two_lines_are_words_of_them() -> None:
    twice = f"{numbered(FILE)}\n{numbered(FILE[::-1])}"
    assert not layout_of(twice).number
    assert "here" not in last_output(*runs("a", FILE), *runs("b", twice))


def test_a_file_read_again_after_an_edit_shows_the_change_and_the_lines_around_it() -> None:
    changed = [*LINES[:30], "a new line of the file", *LINES[31:]]
    history = [*runs("cat -n a.py", numbered(FILE)), *runs("cat -n a.py ", numbered("\n".join(changed)))]
    around = numbered("\n".join(changed[27:34]), 28).split("\n")
    assert without_ref(last_output(*history)).split("\n") == [
        "[narrows: lines 1-27 of `cat -n a.py` above]",
        *around,
        "[narrows: lines 35-60 of it]",
    ]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Write", {"file_path": "a.py", "content": FILE}),
        ("Edit", {"file_path": "a.py", "old_string": f"{FILE}{FILE}", "new_string": FILE}),
    ],
)
def test_a_file_that_a_call_wrote_is_read_by_reference(tool: str, arguments: Json) -> None:
    write = {"role": "assistant", "content": None, "tool_calls": [call("call_0", tool, arguments)]}
    done = [write, gives("done")]
    sent = last_output(*done, *runs("cat -n a.py", numbered(FILE)))
    assert without_ref(sent) == f"[narrows: lines 1-60 of what was given to {tool} a.py above]"
    assert refs_named(sent)


def test_a_call_without_its_text_is_no_source() -> None:
    write = {"role": "assistant", "content": None}
    write["tool_calls"] = [call("call_0", "Write", {"file_path": "a.py", "content": FILE})]
    conversation = conversation_of(user("go"), write, gives("done"), *runs("cat a.py", FILE))
    cut = Replace(conversation.blocks[1].anchor, '{"file_path": "a.py", "content": "gone"}', "clip")
    at = Context(step=2, prices=CHEAP, budget=ROOMY, count=letters, recall=True)
    assert [edit.uses for edit in Reuse(lines=3, saves=10)(conversation, at)] == [(conversation.blocks[1].anchor,)]
    assert not list(Reuse(lines=3, saves=10)(conversation, replace(at, edits={1: cut})))


def test_what_a_call_wrote_stays_while_an_output_inside_the_window_points_to_it() -> None:
    write = {"role": "assistant", "content": None}
    write["tool_calls"] = [call("call_0", "Write", {"file_path": "a.py", "content": FILE})]
    quiet = [message for i in range(3) for message in runs(f"true {i}", f"{i}")]
    policies = Reuse(lines=3, saves=10), Clip(over=40, keep=2, keep_writes=2)

    def clipped(read: str, after: int) -> bool:
        history = [user("go"), write, gives("done"), *runs("x", "y"), *runs("cat a.py", read), *quiet]
        state = plan(conversation_of(*history[: 7 + 2 * after]), setup(*policies)).state
        return 1 in state.offers or 1 in state.edits

    assert clipped("nothing of it", 1)
    assert not clipped(FILE, 1)
    assert clipped(FILE, 2)


@pytest.mark.parametrize("wrapped", [json.dumps, lambda value: json.dumps([json.dumps(value)]), repr])
def test_lines_inside_strings_are_found_and_the_shape_stays(wrapped: Callable[[Json], str]) -> None:
    first, second = ({"output": f"run {i}\n{FILE}\nend {i}", "exit": i, "quote": 'a "b"'} for i in range(2))
    text = last_output(*runs('echo "a"', wrapped(first)), *runs("b", wrapped(second)))
    assert "of `echo 'a'` above" in text
    assert len(text) < 300
    if wrapped is json.dumps:
        sent = json.loads(text)
        note = "[narrows: lines 2-61 of `echo 'a'` above]"
        assert sent | {"output": without_ref(sent["output"])} == second | {"output": f"run 1\n{note}\nend 1"}


def test_references_stay_inside_the_strings_of_json() -> None:
    """Both strings end alike, and so does all that stands between them."""
    outputs = [json.dumps({"id": i, "a": f"{i}\n{FILE}\nend", "b": f"begin\n{FILE[::-1]}\nend"}) for i in range(2)]
    sent = json.loads(last_output(*runs("a", outputs[0]), *runs("b", outputs[1])))
    assert list(sent) == ["id", "a", "b"]
    assert sent["a"].startswith("1\n[narrows:")
    assert sent["b"].startswith("begin\n[narrows:")


def test_many_places_of_one_line_are_looked_at_only_in_part() -> None:
    lines = LinePlaces()
    for at in range(500):
        lines.add(at, "a common line")
    found = [place[0] for place in lines.before(400, "a common line")]
    assert found == [399, 398, 397, 396, 395, 394, 0]


def test_tidying_waits_for_nothing_and_is_recalled_byte_for_byte() -> None:
    noisy = "\x1b[1mbegin\x1b[0m\n" + "\r".join(f"{i} percent done" for i in range(50)) + "\n\n\n\n\nend"
    conversation = conversation_of(user("go"), calls("make"), gives(noisy))
    [edit] = plan(conversation, setup(Tidy(saves=20))).edits
    assert isinstance(edit, Replace)
    assert edit.text.split("\n")[:-1] == ["begin", "49 percent done", "", "end"]
    assert [original(conversation, ref) for ref in refs_named(edit.text)] == [noisy]
