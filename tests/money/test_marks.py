"""Where marks of ours go on caches that match only at marks."""

from functools import partial

from policies.money.caches import newest_input, own_marks
from tests.kit.talk import calls, conversation_of, gives, runs, says, system, user

TALK = conversation_of(system("s"), user("go"), *runs("ls", "a"), calls("cat a", text="look"), gives("x"), user("ok"))
"""Blocks: 0 system, 1 user, 2 call, 3 result, 4 text, 5 call, 6 result, 7 user."""
FRESH = newest_input(TALK, 2)
claude = partial(own_marks, TALK, style="cache_control")


def test_no_style_or_no_slot_means_no_mark() -> None:
    assert own_marks(TALK, entry=0, stays=8, style="", slots=4) == ()
    assert claude(entry=0, stays=8, slots=0) == ()
    assert claude(entry=3, stays=8, slots=-1) == ()


def test_v7_a_mark_stands_at_the_end_of_what_stays() -> None:
    assert FRESH == 6
    assert claude(entry=0, stays=8, slots=4) == (7,)
    assert claude(entry=0, stays=FRESH, slots=4) == (4,)
    assert own_marks(TALK, entry=0, stays=FRESH, style="prompt_cache_breakpoint", slots=4) == (3,)


def test_a_rewrite_marks_what_it_leaves_standing() -> None:
    assert claude(entry=2, stays=FRESH, slots=4) == (1, 4)
    assert claude(entry=2, stays=FRESH, slots=1) == (1,)
    assert claude(entry=2, stays=FRESH, slots=1, tail=True) == (4,)
    assert claude(entry=5, stays=FRESH, slots=4) == (4,)


def test_the_head_and_empty_texts_carry_no_mark_of_ours() -> None:
    talk = conversation_of(system("s"), user(""), *runs("ls", "a"))
    assert own_marks(talk, entry=0, stays=newest_input(talk, 1), style="cache_control", slots=4) == ()


def test_before_the_first_answer_all_is_newest_input() -> None:
    assert newest_input(conversation_of(user("go"), says("x")), 0) == 0
