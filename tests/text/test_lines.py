"""Texts as lines: nothing is lost between them, and numbers count where each names one line."""

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.text.lines import is_json, layout_of, lines_of, written_by
from tests import examples

TEXTS = st.lists(st.sampled_from(["1\ta", "2\t", "   3→b", "x", "\n", "\r\n", "\\n", "\\\\n", '"', "{"]), max_size=40)


@settings(deadline=None, max_examples=examples(200))
@given(TEXTS.map("".join))
def test_lines_follow_one_another_to_the_end(text: str) -> None:
    layout = layout_of(text)
    lines = [*lines_of(text, layout)]
    assert (lines[0].start, lines[-1].end) == (0, len(text))
    between = [text[one.end : two.start] for one, two in pairwise(lines)]
    assert all(each.strip("\\") == ("n" if layout.escaped else "\n") for each in between)
    assert [*lines_of(text, layout, lines[-1].start)] == lines[-1:]
    assert all(line.words in text[line.start : line.end] for line in lines if line.words is not None)


def test_numbers_have_to_rise_to_be_no_words() -> None:
    text = " 9\ta\r\n10\tb\nc\n11\td"
    lines = lines_of(text, layout_of(text))
    assert [(line.number, line.words) for line in lines] == [(9, "a"), (10, "b"), (0, "c"), (11, "d")]
    assert not layout_of("12: a\n12: b\n13: c").number
    assert not layout_of("1: a\n2: b").number


def test_escaped_lines_count_where_hardly_any_others_are() -> None:
    code = "print('a\\nb')\n" * 20
    assert not layout_of(code).escaped
    text = json.dumps({"a": "\n".join(f"line {i}" for i in range(12)), "b": 1})
    assert layout_of(text).json
    words = [line.words for line in lines_of(text, layout_of(text))]
    assert words == [None, *(f"line {i}" for i in range(1, 11)), None]


def test_the_text_that_a_call_wrote_is_its_longest_but_never_what_was_there_before() -> None:
    assert written_by('{"path": "a.py", "old_string": "a long old text", "new_string": "new text"}') == "new text"
    assert written_by("no JSON") == written_by("[1]") == written_by('{"n": 1}') == ""


def test_text_that_is_no_json_is_told() -> None:
    assert [is_json(text) for text in (' {"a": 1}', "[]", "1", "{a}", "")] == [True, True, False, False, False]
