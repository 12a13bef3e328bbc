"""Excerpts: what is hidden is counted exactly, what matters is kept, nothing ever grows. And the wording of stubs."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.digests import digested
from policies.text import stubs
from policies.text.excerpt import excerpt, hidden_identifiers
from policies.tools import HEAD, ToolKind
from tests import examples
from tests.kit.talk import letters

GAP = re.compile(r"\[\.\.\.(\d+) chars omitted\.\.\.\]\n?")
INSIDE = re.compile(GAP.pattern.removesuffix("\\n?"))
TEXTS = st.one_of(
    st.lists(st.text("ab é漢🙂\t", max_size=60), max_size=60).map("\n".join),
    st.lists(st.sampled_from(["", "x", "Error: no", "def f():", "exit code 1", "path/to/a.py:3"]), max_size=80).map(
        "\n".join
    ),
    st.text(max_size=300),
    st.text("abc 漢", min_size=200, max_size=900),
)
quick = settings(deadline=None, max_examples=examples(300))


@quick
@given(TEXTS, st.integers(0, 200), st.sampled_from([*HEAD.values()]), st.booleans())
def test_m10_the_numbers_add_up_and_nothing_grows(text: str, budget: int, head: float, mention: bool) -> None:
    said = frozenset({"x", "path/to/a.py"}) if mention else frozenset[str]()
    shown = excerpt(text, budget, head, said, letters)
    assert len(shown) <= len(text)
    hidden = sum(int(number) for number in GAP.findall(shown))
    # a gap between lines ends its own line, and that line end is the marker's; a gap inside a line has none
    between = sum(len(piece) for piece in GAP.split(shown)[::2])
    inside = sum(len(piece) for piece in INSIDE.split(shown)[::2])
    assert len(text) - hidden in (between, inside)
    assert hidden or shown == text
    shown.encode()


@quick
@given(TEXTS, st.integers(0, 200))
def test_m10_what_is_shown_stands_in_the_text_in_its_order(text: str, budget: int) -> None:
    at = 0
    for piece in GAP.split(excerpt(text, budget, 0.5, frozenset(), letters))[::2]:
        at = text.index(piece, at) + len(piece)


LINES = [f"line {i} of something that goes on for a while" for i in range(200)]


@pytest.mark.parametrize("head", [0.3, 0.5, 0.7])
def test_m10_the_head_gets_its_share_and_lines_stay_whole(head: float) -> None:
    shown = excerpt("\n".join(LINES), 600, head, frozenset(), letters)
    front, back = (piece.splitlines() for piece in GAP.split(shown)[::2])
    assert [*front, *back] == [*LINES[: len(front)], *LINES[-len(back) :]]
    assert len(front) / len([*front, *back]) == pytest.approx(head, abs=0.05)
    assert letters(shown) == pytest.approx(600, rel=0.1)


def test_m10_errors_and_the_status_are_kept_word_for_word() -> None:
    lines = [*LINES]
    lines[90], lines[120], lines[150] = "ValueError: bad λόγος", "Traceback (most recent call last):", "exit status 3"
    shown = excerpt("\n".join(lines), 60, 0.5, frozenset(), letters).splitlines()
    assert {lines[90], lines[120], lines[150]} <= {*shown}


NAMES = [
    "https://files.example/rows.csv?table=orders&x=1",
    "s3://bucket/part-0001/rows.csv",
    "@scope/package/index.js",
    "src/app/main_file.py",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("around", [("see ", " for it"), ('{"at": "', '"}'), ("(", ")."), ("[rows](", ")")])
def test_n4_names_in_lists_stand_as_a_whole(name: str, around: tuple[str, str]) -> None:
    text = f"{around[0]}{name}{around[1]}"
    listed = hidden_identifiers(text, "", frozenset(), 100, letters).removeprefix("also: ").split(", ")
    assert name in listed
    assert all(each == name or each not in name or "://" not in name for each in listed)


LONG_ERROR = (
    "ERROR in ./src/pages/checkout/Payment.tsx: TS2345: Argument of type 'string | undefined' is not assignable"
)
BUDGETS = [0, 10, 30, 100]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("after", [0, 1, 100])
@pytest.mark.parametrize("kind", ["command", "file", "data"])
def test_n5_the_last_error_of_an_output_stays_whatever_the_budget(budget: int, after: int, kind: ToolKind) -> None:
    assert 20 < letters(LONG_ERROR) <= 60
    lines = [*LINES, "error: an earlier one", LONG_ERROR, *LINES[:after]]
    text = "\n".join(lines)
    for shown in (excerpt(text, budget, 0.5, frozenset(), letters), digested(text, kind, budget, frozenset(), letters)):
        assert LONG_ERROR in shown.splitlines()
        assert letters(shown) <= max(budget, 60) + 40


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_n5_of_a_longer_last_error_the_first_words_stay_with_a_mark(budget: int, count: int) -> None:
    error = "fatal: " + " ".join(f"word{i}" for i in range(200))
    text = "\n".join([*LINES[: count - 1], error])
    shown = excerpt(text, budget, 1, frozenset(), letters)
    words, _, rest = shown[shown.index("fatal: ") :].partition("[...")
    assert error.startswith(words)
    assert letters(words) >= 40
    assert rest
    if count > 1:
        assert error[len(words)] == " "


def test_n5_an_exit_status_beside_a_long_error_stays_too() -> None:
    shown = excerpt("\n".join([*LINES, LONG_ERROR, *LINES, "exit code 2"]), 10, 0.5, frozenset(), letters)
    assert {LONG_ERROR, "exit code 2"} <= {*shown.splitlines()}


def test_m10_what_was_mentioned_is_kept() -> None:
    lines = [*LINES]
    lines[77] = "    total = parse_line(row)"
    assert lines[77] in excerpt("\n".join(lines), 60, 0.7, frozenset({"parse_line"}), letters)


@pytest.mark.parametrize("size", [1_000, 100_000, 200_000, 1_000_000])
def test_r1_one_line_is_cut_inside_whatever_its_length(size: int) -> None:
    text = "".join(chr(0x4E00 + i % 2000) for i in range(size))
    shown = excerpt(text, 58, 0.7, frozenset(), letters)
    front, hidden, back = GAP.split(shown)
    assert (len(front), len(back)) == (140, 60)
    assert (text[:140], text[-60:]) == (front, back)
    assert int(hidden) == size - 200


def test_lines_too_long_for_the_budget_are_cut_inside() -> None:
    text = "\n".join(["x" * 5000] * 4)
    assert 100 < len(excerpt(text, 58, 0.5, frozenset(), letters)) < 300


def test_a_very_long_text_keeps_both_ends() -> None:
    text = "\n".join(f"row {i}" for i in range(100_000))
    shown = excerpt(text, 200, 0.5, frozenset(), letters)
    assert shown.startswith("row 0\nrow 1\n")
    assert shown.endswith("row 99998\nrow 99999")


def test_s6_stubs_say_nothing_but_what_follows_from_content() -> None:
    said = [
        stubs.way_back("file", "482913"),
        stubs.hidden_output("web", "482913"),
        stubs.clipped_argument(1200, "482913"),
        stubs.repeated_output("bash", "cat a.py"),
        stubs.superseded_output("bash", "482913"),
        stubs.superseded_output("", "482913"),
        stubs.shortened_prose("482913"),
        stubs.recalled_output("482913", ""),
        stubs.recalled_output("482913", "lines 9-80"),
        stubs.left_out_turns(3, "bash, read_file", "482913482913+7"),
    ]
    assert said == [
        "[narrows: rest: ref 482913]",
        "[narrows: output: ref 482913]",
        "[narrows: argument of 1200 chars left out, ref 482913; it was carried out as written]",
        "[narrows: same output as above, bash `cat a.py`]",
        "[narrows: old output, ref 482913; the same bash call was made again below]",
        "[narrows: old output, ref 482913; the same call was made again below]",
        "[narrows: shortened, ref 482913]",
        "[narrows: output: ref 482913]",
        "[narrows: output: ref 482913, lines 9-80]",
        "[narrows: 3 earlier turns left out to fit the window, ref 482913482913+7; they used: bash, read_file]",
    ]
    assert all(text.startswith(stubs.MARK) for text in said)
    assert [bool(stubs.refs_named(text)) for text in said] == [text is not said[3] for text in said]


@pytest.mark.parametrize(
    ("text", "refs"),
    [
        (f"a\n{stubs.way_back('file', '482913')}\nb {stubs.shortened_prose('111111')}", {"482913", "111111"}),
        (stubs.left_out_turns(3, "bash", "482913482913+7"), {"482913482913+7"}),
        (stubs.lines_above(range(1, 4), "`grep '[a-z]' a.py`", "482913"), {"482913"}),
        (stubs.lines_above(range(1, 4), "write [a].py", "482913", here=8, written=True), {"482913"}),
        ("ref 482913", set()),
        ("[narrows: run it again for the rest] ref 482913", set()),
        (f"{stubs.MARK} ref 48291]", set()),
        (stubs.MARK * 20_000 + "ref 482913", {"482913"}),
    ],
    ids=["two", "a-run", "a-call-with-brackets", "a-written-text", "bare", "behind-a-stub", "short", "many-marks"],
)
def test_r1_the_references_of_a_text_are_those_that_its_stubs_name(text: str, refs: set[str]) -> None:
    assert stubs.refs_named(text) == refs


def test_r7_without_the_tool_no_stub_names_a_reference() -> None:
    said = [
        stubs.way_back("file", ""),
        stubs.hidden_output("web", ""),
        stubs.clipped_argument(1200, ""),
        stubs.superseded_output("bash", ""),
        stubs.shortened_prose(""),
        stubs.left_out_turns(3, "bash, read_file", ""),
        stubs.left_out_turns(3, "", ""),
    ]
    assert said == [
        "[narrows: read it again for the rest]",
        "[narrows: output left out; fetch again to see it]",
        "[narrows: argument of 1200 chars left out; it was carried out as written]",
        "[narrows: old output; the same bash call was made again below]",
        "[narrows: shortened]",
        "[narrows: 3 earlier turns left out to fit the window; they used: bash, read_file. "
        "Run a tool again if needed.]",
        "[narrows: 3 earlier turns left out to fit the window]",
    ]
    assert not any(stubs.refs_named(text) for text in said)
    assert [stubs.names_way_back(text) for text in said] == [True, True, False, False, False, True, False]


def test_r7_every_kind_of_output_has_its_own_way_back() -> None:
    assert len({stubs.way_back(kind, "") for kind in HEAD}) == len(HEAD) == 8
    assert len({stubs.hidden_output(kind, "") for kind in HEAD}) == 8


BITS = st.lists(st.sampled_from([stubs.MARK, "]", "run it again", "Run a tool again", "a", " ", "\n", "x"]), max_size=9)


@given(BITS.map("".join))
def test_x9_a_way_back_stands_in_its_stub(text: str) -> None:
    stub = rf"{re.escape(stubs.MARK)}[^\]]*\b(?:run it again|Run a tool again)\b"
    assert stubs.names_way_back(text) == bool(re.search(stub, text))
    assert not stubs.names_way_back(stubs.MARK * 100_000)  # from each mark on, it would take hours
