"""Terms: what they are, and that no text makes finding them slow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.identifiers import (
    identifier_counts,
    identifiers_in,
    identifiers_of_line,
    identifiers_of_lines,
    in_use,
    mentioned,
)
from tests.kit.talk import conversation_of, gives, runs, says, user


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see src/core/main.py, line 4711.", {"src/core/main.py", "4711", "main.py"}),
        ("parse_line and parseLine and os.path.join", {"parse_line", "parseLine", "os.path.join"}),
        ("setup.cfg ./run.sh ~/notes", {"setup.cfg", "./run.sh", "run.sh", "~/notes"}),
        ("the quick brown fox has 12 legs", set()),
        ("", set()),
        ("漢字 🙂 \ud800", set()),
    ],
)
def test_what_a_term_is(text: str, found: set[str]) -> None:
    assert {term for term in identifiers_in(text) if term in found} == found
    assert all(term in text for term in identifiers_in(text))
    if not found:
        assert identifiers_in(text) == frozenset()


def test_terms_are_counted() -> None:
    assert identifier_counts("parse_line 4711 parse_line a.py")["parse_line"] == 2


def test_both_ends_of_a_long_text_are_looked_at() -> None:
    text = "first_name " + "x " * 200_000 + " last_name"
    assert identifiers_in(text) == {"first_name", "last_name"}


def test_mentioned_is_what_the_model_named_since() -> None:
    talk = conversation_of(user("old_name"), *runs("ls", "result_name"), says("new_name"), user("later_name"))
    assert mentioned(talk, 2, 2) == {"new_name"}
    assert mentioned(talk, 0, 1) == frozenset()


def test_a_result_is_in_use_while_the_model_names_what_only_it_shows() -> None:
    talk = conversation_of(user("go"), *runs("ls", "a_one b_two"), *runs("touch a_one b_two", ""), says("a_one b_two"))
    assert in_use(talk, 2, 3, 4, 2)
    assert not in_use(talk, 2, 3, 4, 3)
    newer = conversation_of(
        user("go"), *runs("ls", "a_one b_two"), *runs("cat a_one b_two", "a_one"), says("x"), gives("")
    )
    assert not in_use(newer, 2, 3, 4, 2)


@pytest.mark.parametrize(
    "piece", ["~", "~a~/", "a/", "a/.", "/~", "~/~", "a~", "a.", "-", "1", "_a.", ". ", "a-/", "\n", "漢"]
)
def test_x9_hostile_text_ends(piece: str) -> None:
    """A pattern that backtracks without bound would not come back from these: bounded, each is a second at most."""
    assert all(len(term) < 2000 for term in identifiers_in((piece * 1_000_000)[:1_000_000]))


def test_a_long_text_is_searched_once_though_it_is_asked_for_again() -> None:
    text = "one_name " * 20_000
    assert identifiers_in(text) is identifiers_in(text)


NAMES = st.text(st.sampled_from("aZ_.~/-09 \t\\'\"é\x1f"), max_size=40)


@given(NAMES)
def test_ascii_is_read_like_any_other_text(text: str) -> None:
    assert identifiers_of_line(text) == identifiers_of_line(f"{text} 字")


@given(st.lists(NAMES | st.just("some_name " * 30), max_size=5))
def test_many_lines_are_read_as_each_of_them(lines: list[str]) -> None:
    assert identifiers_of_lines(lines) == [identifiers_of_line(line) for line in lines]
