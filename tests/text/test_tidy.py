"""Tidying: what stays is what a reader of a terminal, or of JSON, would read."""

import json

from hypothesis import given
from hypothesis import strategies as st

from policies.rules.tidy import tidied

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(VALUES, min_size=1), st.integers(0, 4))
def test_json_has_the_same_values_in_the_same_spelling(value: object, indent: int) -> None:
    written = json.dumps(value, indent=indent)
    tidy = tidied(written, "data")
    assert tidy == json.dumps(value, separators=(",", ":"))
    assert tidied(tidy, "data") == tidy


def test_names_that_repeat_and_numbers_keep_their_spelling() -> None:
    assert tidied('{ "a" : 1.00, "a": 1e5,\n "b": 12345678901234567890 }', "data") == (
        '{"a":1.00,"a":1e5,"b":12345678901234567890}'
    )


def test_what_only_looks_like_json_stays() -> None:
    for text in ("{ a : 1 }", "[1, 2", '{"a": 1}  {"b": 2}', "[ NaN ]"):
        assert tidied(text, "data") == text


def test_a_line_written_over_stands_as_a_terminal_leaves_it() -> None:
    assert tidied("a long first text\rshort", "command") == "shortg first text"
    assert tidied("one\r\ntwo\r\n", "command") == "one\r\ntwo\r\n"


def test_files_and_diffs_keep_their_blanks() -> None:
    diff = "diff --git a/a b/a\n@@ -1 +1 @@\n+a    \n\n\n\n-b"
    assert tidied(diff, "command") == diff
    for kind in ("file", "search", "listing", "web"):
        assert tidied("a    \n\n\n\nb", kind) == "a    \n\n\n\nb"


def test_a_line_written_over_a_hundred_thousand_times_takes_no_longer_than_it_is_long() -> None:
    assert tidied("x" * 50_000 + "\r" * 100_000 + "done", "command") == "done" + "x" * 49_996


def test_a_long_run_of_blanks_inside_a_line_is_read_once() -> None:
    line = "a" + " \t" * 200_000 + "b"
    assert tidied(f"{line}  \n{line}", "command") == f"{line}\n{line}"
