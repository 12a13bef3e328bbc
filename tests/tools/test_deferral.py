"""Which definitions of tools are deferred, and what a search finds among them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.tools.deferral import (
    LEAST,
    LEAST_LIST,
    MOST_CALLED,
    SEARCHES,
    Catalog,
    Definition,
    Terms,
    beside,
    deferred,
    is_last,
    most_called,
    named_in,
    names_of,
    search,
    unambiguous,
)

TERMS = Terms(read=0.1, write=1.0, prompt=500, requests=1, is_rewritten=False)
NAMES = ("create_issue", "list_issues", "mcp__git__list_branches", "get-weather", "search", "export_csv")


def catalog(*names: str, tokens: int = 1_000, about: str = "", is_searched: bool = False) -> Catalog:
    definitions = [Definition(name.encode("utf-8", "replace"), tokens, name, about) for name in names]
    return Catalog(unambiguous(definitions), "digest", is_searched)


def found(names: Sequence[str], query: str) -> list[str]:
    return [each.name for each in search(catalog(*names), tuple(range(len(names))), query)]


def test_all_are_deferred_but_those_that_have_to_stay() -> None:
    assert deferred(catalog(*NAMES), (), TERMS, 300) == (0, 1, 2, 3, 4, 5)
    assert deferred(catalog(*NAMES), {"list_issues", "search"}, TERMS, 300) == (0, 2, 3, 5)


def test_nothing_is_deferred_where_that_is_little() -> None:
    assert deferred(catalog(*NAMES, tokens=LEAST_LIST // 6 - 1), (), TERMS, 0) == ()
    assert deferred(catalog(*NAMES), {*NAMES[1:]}, TERMS, 1_000 - LEAST + 1) == ()
    assert deferred(catalog(*NAMES, is_searched=True), (), TERMS, 0) == ()


def test_nothing_is_deferred_where_a_search_costs_more() -> None:
    """A long prompt is read again for each search; in a list that grows, it is written anew twice."""
    long = Terms(read=0.1, write=1.0, prompt=100_000, requests=1, is_rewritten=False)
    assert deferred(catalog(*NAMES), (), long, 0) == ()
    later = Terms(read=0.1, write=1.0, prompt=100_000, requests=60, is_rewritten=False)
    assert len(deferred(catalog(*NAMES), (), later, 0)) == 6
    for prompt, many in ((int(3_000 * 1.1 / SEARCHES) - 1, 6), (int(3_000 * 1.1 / SEARCHES) + 1, 0)):
        assert len(deferred(catalog(*NAMES), (), Terms(0.1, 1.0, prompt, 1, True), 0)) == many


def test_the_last_search_is_one_more_than_was_counted_on_or_costs_too_much() -> None:
    """In whatever order a list is: what its searches lose is bounded."""
    short = Terms(read=0.1, write=1.0, prompt=10, requests=1, is_rewritten=True)
    assert [is_last(searches, 10_000, short) for searches in range(1, 5)] == [False, False, True, True]
    for prompt, last in ((int(10_000 * 1.1 / 2), False), (int(10_000 * 1.1 / 2) + 1, True)):
        assert is_last(2, 10_000, Terms(0.1, 1.0, prompt, 1, True)) is last


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("Use create_issue for that.", {"create_issue"}),
        ("use `CREATE_ISSUE`, then GET-WEATHER", {"create_issue", "get-weather"}),
        ("recreate_issue and create_issues", set()),
        ("list_branches, please", {"mcp__git__list_branches"}),
        ("Search the branches of the weather.", {"search"}),
        ("list branches", set()),
    ],
)
def test_what_a_text_names_as_a_whole_word_stays(said: str, named: set[str]) -> None:
    assert named_in(catalog(*NAMES), ["Hello.", said]) == named


def test_a_name_that_is_not_plain_or_stands_twice_is_never_deferred() -> None:
    odd = catalog("one", "one", "a b", "x" * 129, "q\n", "", "häuser", "fine")
    assert [each.name for each in odd.definitions] == [*[""] * 7, "fine"]


def test_names_that_many_have_called_count_first_and_few_are_remembered() -> None:
    counts = {f"t{n}": n for n in range(200)}
    assert list(most_called(counts)) == [f"t{n}" for n in range(199, 199 - MOST_CALLED, -1)]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("create an issue", "create_issue"),
        ("issues list", "list_issues"),
        ("branch listing of git", "mcp__git__list_branches"),
        ("What is the weather?", "get-weather"),
        ("export_csv", "export_csv"),
        ("exportCsv", "export_csv"),
    ],
)
def test_a_search_finds_by_words_and_by_name(query: str, first: str) -> None:
    assert found(NAMES, query)[0] == first


def test_a_search_brings_few_and_within_a_budget() -> None:
    many = [f"list_things_{n}" for n in range(40)]
    assert len(found(many, "list things")) == 4
    large = catalog("huge_report", "small_report", tokens=9_000)
    assert [each.name for each in search(large, (0, 1), "report")] == ["huge_report"]
    assert search(catalog(*NAMES), (1, 2), "create_an_invoice weather") == ()


@given(st.text(max_size=60), st.lists(st.text(max_size=20), max_size=12))
def test_no_words_and_no_names_make_a_search_fail(query: str, names: list[str]) -> None:
    some = catalog(*names, about=query)
    places = tuple(at for at, each in enumerate(some.definitions) if each.name)
    assert {each.name for each in search(some, places, query)} <= {some.definitions[at].name for at in places}


def test_the_model_is_told_as_many_names_as_there_is_room_for() -> None:
    assert names_of(catalog(*NAMES), (0, 4)) == "create_issue, search"
    many = catalog(*(f"a_tool_of_some_kind_{n:04}" for n in range(2_000)))
    said = names_of(many, range(2_000))
    assert len(said) < 3_020
    assert said.endswith(f" and {2_000 - said.count('a_tool')} more")


def test_what_stands_next_to_a_hit_comes_with_it_the_nearest_first() -> None:
    some = catalog(*(f"n{at}" for at in range(20)), tokens=100)

    def names(room: int, places: Sequence[int] = range(20), hits: Sequence[int] = (5,)) -> list[str]:
        return [each.name for each in beside(some, places, [some.definitions[at] for at in hits], room)]

    assert names(99) == []
    assert names(399) == ["n4", "n6"]
    assert names(400, [5, *range(8, 19)]) == ["n8", "n9"]
    assert names(10_000) == ["n4", "n6", "n3", "n7"]
    assert names(399, hits=(5, 6)) == ["n4"]


def test_a_neighbour_that_does_not_fit_keeps_no_other_out() -> None:
    sizes = [("a", 100), ("huge", 900), ("hit", 100), ("b", 100), ("c", 100), *((f"far{n}", 900) for n in range(9))]
    some = Catalog(tuple(Definition(name.encode(), tokens, name) for name, tokens in sizes), "digest", False)
    near = beside(some, range(len(sizes)), [some.definitions[2]], 450)
    assert [each.name for each in near] == ["b", "a", "c"]
