"""Where marks of ours go on caches that match only at marks."""

from policies.money.marks import own_marks
from tests.kit.talk import calls, conversation_of, gives, runs, says, system, user

TALK = conversation_of(system("s"), user("go"), *runs("ls", "a"), calls("cat a", text="look"), gives("x"), user("ok"))


def test_no_style_or_no_slot_means_no_mark() -> None:
    assert own_marks(TALK, 2, None, "", 4) == ()
    assert own_marks(TALK, 2, None, "cache_control", 0) == ()
    assert own_marks(TALK, 2, 3, "cache_control", -1) == ()


def test_v7_a_mark_stands_before_the_fresh_result() -> None:
    # blocks: 0 system, 1 user, 2 call, 3 result, 4 text, 5 call, 6 result, 7 user
    assert own_marks(TALK, 2, None, "cache_control", 4) == (4,)
    assert own_marks(TALK, 2, None, "prompt_cache_breakpoint", 4) == (3,)


def test_a_rewrite_marks_what_it_leaves_standing() -> None:
    assert own_marks(TALK, 2, 2, "cache_control", 4) == (1, 4)
    assert own_marks(TALK, 2, 2, "cache_control", 1) == (1,)
    assert own_marks(TALK, 2, 2, "cache_control", 1, tail=True) == (4,)
    assert own_marks(TALK, 2, 5, "cache_control", 4) == (4,)


def test_the_head_and_empty_texts_carry_no_mark_of_ours() -> None:
    talk = conversation_of(system("s"), user(""), *runs("ls", "a"))
    assert own_marks(talk, 1, None, "cache_control", 4) == ()


def test_before_the_first_answer_there_is_nothing_to_mark() -> None:
    assert own_marks(conversation_of(user("go"), says("x")), 0, None, "cache_control", 4) == ()
