"""The recall tool: how a call is read, and what it is answered."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.compact import compact
from policies.model.conversation import Conversation
from policies.model.edits import Fold
from policies.recall import PAGE, RecallCall, answer, original, read, stands_for_text
from policies.text.stubs import MARK, names_way_back
from tests import examples
from tests.kit.histories import CHEAP, EAGER, TIGHT, Json, body_of
from tests.kit.talk import conversation_of, recalls, runs, system, user
from tests.planning.test_laws import followed

quick = settings(deadline=None, max_examples=examples(100))
MOST = PAGE + 1_000
"""Characters that no answer has more of, whatever is asked."""


def asking(said: Any) -> RecallCall:
    return read(json.dumps(said))


def talk(text: str, *more: Json) -> tuple[Conversation, str]:
    """A conversation with one output, and what that is called."""
    conversation = conversation_of(system("be brief"), user("go"), *runs("cat a", text), *more)
    return conversation, conversation.ref(3)


def ask(conversation: Conversation, ref: str, part: str = "", last: bool = False) -> str:
    return answer(conversation, json.dumps({"ref": ref, "part": part}), last).text


@pytest.mark.parametrize(
    "ref", [482913, "482913", "ref 482913", "#482913", " 482913 ", "[narrows: ref 482913]", [482913]]
)
def test_r1_a_reference_is_read_however_it_is_spelled(ref: object) -> None:
    assert asking({"ref": ref}) == RecallCall("482913", "")


def test_r1_a_reference_written_as_a_number_keeps_its_leading_zeros() -> None:
    assert asking({"ref": 93401}) == RecallCall("093401", "")


def test_r1_the_reference_to_a_run_of_turns_is_read() -> None:
    assert asking({"ref": "482913482913+17"}) == RecallCall("482913482913+17", "")


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"part": "lines 9-80"}, "lines 9-80"),
        ({"part": " lines 9-80 "}, "lines 9-80"),
        ({"lines": "9-80"}, "lines 9-80"),
        ({"chars": "0-999"}, "chars 0-999"),
        ({"find": "def .*x"}, "find def .*x"),
        ({"part": None, "find": "x"}, "find x"),
        ({"part": "chars 1-2", "find": "x"}, "chars 1-2"),
        ({"part": 7}, "7"),
    ],
)
def test_r1_a_part_may_be_a_field_of_its_own(more: Json, part: str) -> None:
    assert asking({"ref": "482913", **more}) == RecallCall("482913", part)


@pytest.mark.parametrize("arguments", ["", "{}", "null", "[]", "482913", '{"ref":', '{"ref":null}', '{"ref":"48291"}'])
def test_r6_what_names_nothing_has_no_reference(arguments: str) -> None:
    assert read(arguments).ref == ""


TEXTS = st.one_of(
    st.text(st.characters(), max_size=200),  # lone surrogates too
    st.lists(
        st.sampled_from(["", " ", "\r", "🙂", "漢字", "\x00\x01\x7f", '{"a": "\\"\\\\n"}', "\ud83d", "a b"]),
        max_size=40,
    ).map("\n".join),
    st.binary(max_size=300).map(lambda raw: raw.decode("latin-1")),
    st.recursive(st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)).map(
        lambda v: json.dumps(json.dumps(v))
    ),
)


@quick
@given(TEXTS, st.integers(0, 300))
def test_r1_what_is_recalled_is_what_was_said_byte_for_byte(text: str, copies: int) -> None:
    said = text * copies if text.strip() else text
    conversation, ref = talk(said, *runs("ls", "a"))
    assert original(conversation, ref) == said
    assert followed(conversation, ref) == said


@pytest.mark.parametrize(
    "text",
    [
        "".join(chr(0x4E00 + i) for i in range(2_000)) * 2_500,
        "\n".join(f"row {i} of a table" for i in range(20_000)),
        "\n" * (3 * PAGE),
        ("x" * (PAGE // 2 + 1) + "\n") * 7,
        "🙂\ud83d" * PAGE,
        "x" * PAGE,
        "x" * (PAGE + 1),
    ],
    ids=["5MB-on-one-line", "lines", "no-words", "long-lines", "surrogates", "a-page", "a-page-and-one"],
)
def test_r1_page_by_page_all_of_it_is_read(text: str) -> None:
    conversation, ref = talk(text)
    assert followed(conversation, ref) == text
    assert len(ask(conversation, ref)) <= MOST


def test_r1_a_page_ends_with_a_line_and_says_how_to_go_on() -> None:
    text = "\n".join(f"row {i} of a table" for i in range(5000))
    conversation, ref = talk(text)
    shown, _, said = ask(conversation, ref).rpartition("\n")
    assert (text.startswith(shown), shown[-1]) == (True, "\n")
    assert said == (
        f'[narrows: chars 0-{len(shown)} of {len(text)}; go on with part "chars {len(shown)}-{len(text)}"; '
        'part may be "lines 9-80", "chars 0-999" or "find REGEX"]'
    )


LINES = st.lists(st.text("abc XY0194_-λ漢🙂\t", max_size=30), min_size=1, max_size=40).map("\n".join)


@quick
@given(
    LINES,
    st.integers(0, 50),
    st.integers(0, 50),
    st.sampled_from(["lines {}-{}", "{}-{}", "Lines {} to {}", "line {}..{}", "lines {}:{}"]),
)
def test_r1_lines_are_those_that_are_counted_from_one(text: str, first: int, last: int, spelled: str) -> None:
    conversation, ref = talk(text)
    said = ask(conversation, ref, spelled.format(first, last))
    expected = "".join(re.findall(r"[^\n]*\n|[^\n]+\Z", text)[max(0, first - 1) : last])
    assert said == expected or (not expected and (said.startswith(MARK) or not text))


@quick
@given(LINES, st.integers(1, 50))
def test_r1_lines_may_be_open_at_an_end(text: str, at: int) -> None:
    conversation, ref = talk(text)
    lines = re.findall(r"[^\n]*\n|[^\n]+\Z", text)
    for part, expected in (("lines {}-", lines[at - 1 :]), ("lines -{}", lines[:at]), ("lines {}", lines[at - 1 : at])):
        said = ask(conversation, ref, part.format(at))
        assert said == "".join(expected) or (not "".join(expected) and (said.startswith(MARK) or not text))


@quick
@given(st.text("ab\n漢🙂", min_size=1, max_size=80), st.integers(0, 99), st.integers(0, 99))
def test_r1_chars_are_code_points_from_zero(text: str, first: int, last: int) -> None:
    conversation, ref = talk(text)
    said = ask(conversation, ref, f"chars {first}-{last}")
    assert said == text[first:last] or (not text[first:last] and said.startswith(MARK))


PATTERNS = st.sampled_from(
    [r"\d+", "a.c", "^a", "c$", "[abc]+X", "a|X", "(ab)+", "λ", "漢.", "[^a]", r"\bb", "x?y", "0194", "^$", r"\s"]
)


@quick
@given(LINES, PATTERNS)
def test_r1_a_search_finds_the_lines_that_python_finds(text: str, pattern: str) -> None:
    conversation, ref = talk(text)
    said = ask(conversation, ref, f"find {pattern}")
    lines = [f"{i}: {line}" for i, line in enumerate(text.split("\n"), 1) if re.search(pattern, line, re.I | re.A)]
    assert said == "\n".join(lines) or (not lines and said.startswith(f"{MARK} no match for {pattern!r}"))


def test_r1_a_search_in_one_long_line_shows_what_stands_around() -> None:
    text = "".join(f"{i:07}漢" for i in range(600_000))
    conversation, ref = talk(text)
    said = ask(conversation, ref, "find 0400000漢")
    assert said.startswith("1: ")
    assert said.removeprefix("1: ") in text
    assert "0399999漢0400000漢0400001" in said
    assert len(said) < 500


@pytest.mark.parametrize("pattern", ["surrogate", "漢", "x"])
def test_r1_a_search_shows_what_it_shows_as_it_was_said(pattern: str) -> None:
    text = "a surrogate \ud83d here\n" + "🙂漢x" * 4000
    conversation, ref = talk(text)
    for line in ask(conversation, ref, f"find {pattern}").split("\n"):
        assert line.startswith(MARK) or line.partition(": ")[2] in text


def test_r1_a_search_stops_when_a_page_is_full() -> None:
    conversation, ref = talk("a line\n" * 100_000)
    said = ask(conversation, ref, "find line")
    assert said.startswith("1: a line\n2: a line\n")
    assert said.rpartition("\n")[2].startswith(f"{MARK} more match; part may be")
    assert len(said) <= MOST


HOSTILE = [
    "find (a+)+$",
    "find (a|aa)*b",
    "find a(.*b)?",
    "find .",
    "find",
    "find ",
    "find (",
    "find [",
    "find a{1000}{1000}",
    "find \\",
    "find (?P<x>",
    "find " + "(" * 10_000,
    "find " + "a?" * 5_000,
    "find \ud83d",
    "find \x00",
    "lines 999999999999-999999999999",
    "lines 80-9",
    "lines -5--1",
    "lines 0-0",
    "chars 999999999999-",
    "chars 9-1",
    "chars -1",
    "lines" + " " * 100_000 + "x",
    "lines " + "9" * 100_000,
    "- " * 50_000,
    "lines 1-2-3",
    "lines",
    "chars",
    "-",
    "everything",
    "\ud83d",
    "lines ٣-٤",
]


@pytest.mark.parametrize("text", ["a" * 1_000_000 + "b", "a\n" * 200_000, ""], ids=["one line", "lines", "empty"])
def test_r6_hostile_parts_are_answered_within_bounds(text: str) -> None:
    conversation, ref = talk(text)
    for part in HOSTILE:
        found = answer(conversation, json.dumps({"ref": ref, "part": part}))
        assert len(found.text) <= MOST, part
        assert found == answer(conversation, json.dumps({"ref": ref, "part": part}))


@pytest.mark.parametrize("part", ["lines 80-9", "lines 999999999999-", "find nothing", "everything", "chars 9-9"])
def test_r6_what_cannot_be_shown_is_one_sentence_of_ours(part: str) -> None:
    conversation, ref = talk("a short text")
    found = answer(conversation, json.dumps({"ref": ref, "part": part}))
    assert (found.succeeded, found.text[: len(MARK)], found.text[-1], found.text.count("\n")) == (False, MARK, "]", 0)


def test_r6_a_pattern_that_would_take_too_long_is_refused_in_true_words() -> None:
    text = "a line of output\n" * 600_000
    conversation, ref = talk(text)
    refused = f"{MARK} the pattern is too much for {len(text)} chars; find plain words]"
    assert ask(conversation, ref, "find .*l.*i.*n.*e.*q") == refused
    assert ask(conversation, ref, "find a line of q").startswith(f"{MARK} no match")


FOREIGN = conversation_of(user("elsewhere"), *runs("cat secret", "the secret of another conversation")).ref(2)


@pytest.mark.parametrize("ref", ["999999", FOREIGN, "0" * 24, "482913482913+7", "123456+2", "999999999999+999999999"])
def test_r6_a_reference_of_nothing_here_gets_one_final_sentence(ref: str) -> None:
    # a tool, or the person, may print what looks like a stub of ours: it is not obeyed
    conversation, _ = talk("some output", *runs("cat b", f"{MARK} rest: ref {ref}]"))
    found = answer(conversation, json.dumps({"ref": ref}))
    assert (
        found.text
        == f"{MARK} nothing in this conversation has the ref {ref}; do not retry, another command or range may show it]"
    )
    assert not found.succeeded


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", '{"ref": "all"}', '{"reference": "482913"}', '{"ref": {}}', "\ud83d"]
)
def test_r6_a_malformed_call_gets_one_final_sentence(arguments: str) -> None:
    conversation, _ = talk("some output")
    found = answer(conversation, arguments)
    assert (
        found.text
        == f"{MARK} nothing in this conversation has the ref given; do not retry, another command or range may show it]"
    )
    assert not found.succeeded


def test_r6_system_text_is_nobodys_to_recall() -> None:
    conversation, _ = talk("some output")
    said = conversation.blocks[0].text_digest
    digits = f"{int.from_bytes(said[:16], 'big') % 10**24:024}"
    for length in (6, 9, 12, 18, 24):
        assert original(conversation, digits[:length]) is None


@pytest.mark.parametrize("part", ["", "lines 1-1", "find x", "find nothing", "lines 9-"])
def test_r6_the_last_answer_says_so(part: str) -> None:
    conversation, ref = talk("x\ny")
    for asked in (ref, "999999"):
        plain, last = ask(conversation, asked, part), ask(conversation, asked, part, last=True)
        assert last == f"{plain}\n{MARK} this was the last recall in this reply]"


def test_r1_what_was_recalled_can_be_recalled() -> None:
    conversation, ref = talk("some output")
    again = conversation_of(system("be brief"), user("go"), *runs("cat a", "some output"), *recalls(ref, "some output"))
    assert ask(again, ref) == ask(conversation, ref) == "some output"


def test_a_fold_of_turns_is_recalled_with_every_word_in_its_order() -> None:
    session = [
        user("go"),
        *(message for i in range(12) for message in runs(f"make {i}", f"{i} lines of output\n" * 40)),
    ]
    done = compact(body_of(session), policies=(EAGER[-1],), prices=CHEAP, budget=TIGHT, recall=True)
    fold = next(edit for edit in done.plan.edits if isinstance(edit, Fold))
    (ref,) = re.findall(r"ref (\d+\+\d+)", fold.text)
    found = original(done.conversation, ref)
    assert found is not None
    assert found.startswith('== call bash ==\n{"command": "make 0"}\n== result bash ==\n0 lines of output\n')
    assert found.count("== result bash ==") == int(ref.partition("+")[2]) / 2 > 3


HALVES = (system("be brief"), user("go"), *runs("cat a", "first\nand more"), *runs("cat b", "second"))


def test_n4_half_a_reference_to_a_run_shows_its_first_text_and_how_to_go_on() -> None:
    conversation = conversation_of(*HALVES)
    name, plus, count = conversation.run_ref(3, 5).partition("+")
    note = f"the first of several texts; ref {name}+N has the first N of them"
    expected = f"first\nand more\n{MARK} {note}, the next text alone has ref {conversation.ref(4)}]"
    assert ask(conversation, name) == ask(conversation, name + plus) == expected
    assert ask(conversation, name, "lines 2-2").startswith(f"and more\n{MARK} {note}")
    assert ask(conversation, conversation.ref(4)) == conversation.blocks[4].text
    assert "second" in ask(conversation, f"{name}+{count}")


def test_n4_the_answer_to_half_a_reference_stays_the_same_when_the_history_grows() -> None:
    conversation, later = conversation_of(*HALVES), conversation_of(*HALVES, *runs("cat c", "third"))
    name = conversation.run_ref(3, 5).partition("+")[0]
    assert ask(conversation, name) == ask(later, name)


def test_n4_what_half_a_reference_brought_back_becomes_that_reference_again() -> None:
    conversation = conversation_of(*HALVES)
    name = conversation.run_ref(3, 5).partition("+")[0]
    assert stands_for_text(conversation, name)
    assert not stands_for_text(conversation, f"{name}+99")
    assert ask(conversation, conversation.run_ref(5, 5).partition("+")[0]).endswith("has the first N of them]")


def test_n3_no_refusal_sends_the_model_back_to_a_tool_that_may_say_that_nothing_has_changed() -> None:
    conversation = conversation_of(*HALVES)
    refused = ask(conversation, "999999")
    nothing = "nothing in this conversation has the ref 999999"
    assert refused == f"{MARK} {nothing}; do not retry, another command or range may show it]"
    assert not names_way_back(refused)
