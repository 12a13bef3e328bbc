"""Windows in turns, messages and tokens, sizes in three units, triggers, and what a preset may do beyond the laws."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.context import Context, Exceptions
from policies.model.conversation import Conversation
from policies.model.parameters import Keep, Large, Size, Trigger, Window, begin_of, is_large
from tests import examples
from tests.kit.talk import PREFIX_PRICES, ROOMY, conversation_of, letters, runs, says, system, user

ROOM = 1_000
TALK = conversation_of(
    system("S"),
    user("Do it."),
    *(message for i in range(8) for message in runs(f"make {i}", f"made {i}\n" * 20)),
    says("?"),
    user("Go on."),
)


def context(step: int, **given: Any) -> Context:
    sizes, budget = [block.tokens + block.frame for block in TALK.blocks], replace(ROOMY, window=ROOM)
    return replace(Context(step=step, prices=PREFIX_PRICES, budget=budget, count=letters, sizes=sizes), **given)


def inside(keep: Keep, step: int = TALK.steps - 1) -> list[int]:
    """The messages that are wholly inside the window at a step."""
    first = begin_of(TALK, keep, step, ROOM)
    return [block.message for block in TALK.blocks[first : TALK.ends[step]]]


@pytest.mark.parametrize(
    ("keep", "messages"),
    [
        (1, [18, 19]),
        (3, [14, 15, 16, 17, 18, 19]),
        (Window(turns=3), [14, 15, 16, 17, 18, 19]),
        (Window(messages=1), [18, 19]),  # the newest turn is always inside
        (Window(messages=6), [14, 15, 16, 17, 18, 19]),
        (Window(messages=5), [15, 16, 17, 18, 19]),
        (Window(messages=99), [*range(2, 20)]),
        (Window(share=0.2), [*range(11, 20)]),
        (Window(turns=1, messages=4), [16, 17, 18, 19]),  # the widest holds
    ],
)
def test_c6_a_window_is_turns_messages_or_a_share(keep: Keep, messages: list[int]) -> None:
    assert sorted(set(inside(keep))) == messages


def test_c6_system_text_is_no_message_of_a_window() -> None:
    between = conversation_of(user("a"), says("b"), system("S"), user("c"), says("d"), user("e"))
    first = begin_of(between, Window(messages=3), between.steps - 1, ROOM)
    assert between.blocks[first].text == "c"


@settings(deadline=None, max_examples=examples(40))
@given(
    st.one_of(
        st.integers(0, 12),
        st.builds(Window, st.integers(0, 9), st.integers(0, 30), st.floats(0, 1, exclude_max=True)),
    )
)
def test_law_2_every_block_comes_of_age_once_and_in_order(keep: Keep) -> None:
    seen = [i for step in range(TALK.steps) for i in context(step).aged(TALK, keep)]
    assert seen == list(range(TALK.ends[0], begin_of(TALK, keep, TALK.steps - 1, ROOM)))


def test_c1_nothing_comes_of_age_before_a_trigger_then_all_at_once_then_one_by_one() -> None:
    """The trigger is a number of messages, which the sixth request is the first to have."""
    when = (Trigger(messages=12),)
    aged = [list(context(step).aged(TALK, 2, when)) for step in range(TALK.steps)]
    assert aged[:5] == [[]] * 5
    assert aged[5] == list(range(TALK.ends[0], TALK.ends[3]))
    assert aged[6] == list(range(TALK.ends[3], TALK.ends[4]))


def test_c1_a_trigger_that_held_once_holds_on() -> None:
    """What was sent is shorter by now; the most that it ever was counts."""
    small = context(6, sizes=[1] * len(TALK.blocks), peak=700)
    assert list(small.aged(TALK, 2, (Trigger(tokens=600),))) == list(range(TALK.ends[3], TALK.ends[4]))
    assert list(replace(small, peak=500).aged(TALK, 2, (Trigger(tokens=600),))) == []


@pytest.mark.parametrize(
    ("large", "is_so"),
    [
        (3, True),
        (4, False),
        (Size(tokens=3), True),
        (Size(tokens=4), False),
        (Size(chars=4), True),
        (Size(chars=5), False),
        (Size(bytes=10), True),
        (Size(bytes=11), False),
        (Size(tokens=9, chars=4), True),
        (Size(), False),
    ],
)
def test_m10_a_size_is_exceeded_in_any_unit(large: Large, is_so: bool) -> None:
    assert is_large("語é🙂!x", 4, large) is is_so


@pytest.mark.parametrize(
    ("name", "text", "goes"),
    [
        ("<a>*</a>", " <a>old</a>\n", True),
        ("<a>*</a>", "<a></a>", True),
        ("<a>*</a>", "<a>one</a> never <a>two</a>", False),
        ("<a>*</a>", "Write <a>, then </a>.", False),
        ("<a>*</a>", "<a>", False),
        ("Background:*", "Background: all of it", True),
        ("Background:*", "The Background: some", False),
        ("exactly this", "exactly this", True),
        ("exactly this", "exactly this and more", False),
    ],
)
def test_v8_system_text_goes_only_where_it_is_named(name: str, text: str, goes: bool) -> None:
    talk: Conversation = conversation_of(system(text), user(text))
    exceptions = Exceptions(system=(name,))
    assert exceptions.may_fold_system(talk.blocks[0]) is goes
    assert not exceptions.may_fold_system(talk.blocks[1])
    assert exceptions.foldable_system(talk) == ((0,) if goes else ())
