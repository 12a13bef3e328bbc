"""What a process remembers of the conversations that it serves: enough to ask the store for nothing."""

from typing import Any

import pytest

from proxy.memory import conversation
from proxy.memory.cached import CachedStore
from proxy.memory.conversation import Conversations
from tests.kernel.test_planning import ENDS, Bench, request
from tests.kernel.test_planning import store as opened  # noqa: F401 - a fixture
from tests.memory.test_conversations import settled

TURNS = range(6, 12)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the store was asked for."""
    names: list[str] = []
    real: Any = CachedStore.ask

    async def ask(self: CachedStore, operation: str, question: Any, **how: Any) -> Any:
        names.append(operation)
        return await real(self, operation, question, **how)

    monkeypatch.setattr(CachedStore, "ask", ask)
    return names


async def in_turn(store: CachedStore, count: int, turns: range) -> list[tuple[object, object]]:
    """The plans of so many conversations, served in turn."""
    bench, plans = Bench(store, recall="never"), []
    for turn in turns:
        for number in range(count):
            planned = await bench.plan(turn, conversation=f"{number}")
            assert (planned.plan_state is None) == (turn == turns[0])
            plans.append((planned.plan.edits, bench.send(planned)))
    return plans


@pytest.mark.parametrize("room", [2**30, 400_000, 1])
async def test_e1_conversations_in_turn_are_continued_where_they_were_left_off(
    opened: CachedStore,  # noqa: F811
    questions: list[str],
    room: int,
) -> None:
    """Also those that are packed meanwhile."""
    alone = (await in_turn(opened, 1, TURNS))[1:]
    questions.clear()
    opened.conversations = Conversations(2**40, room)
    shared = await in_turn(opened, 5, TURNS)
    assert shared[5:] == [plan for plan in alone for _ in range(5)]
    assert questions.count("memory") + questions.count("snapshot") == 10
    assert bool(await settled(opened.conversations)) == (room < 2**30)


async def test_e1_each_branch_of_a_conversation_is_continued_and_its_oldest_steps_go(opened: CachedStore) -> None:  # noqa: F811
    bench = Bench(opened)
    for turn in TURNS:
        for name in (b"waypost", b"another", b"a third"):
            body = request(turn).body.replace(b"waypost", name)
            planned = await bench.plan(turn, conversation="named", body=body)
            assert (planned.plan_state is None) == (turn == TURNS[0])
            bench.send(planned)
    live = planned.context.live
    assert (len(live.steps), len(live.sent), len(live.branches)) == (6, 16, 3)


async def test_s1_a_request_that_is_repeated_and_one_that_goes_back_are_planned_the_same(opened: CachedStore) -> None:  # noqa: F811
    bench, plans = Bench(opened), {}
    for turn in (*TURNS, TURNS[-1], TURNS[-2], TURNS[0], len(ENDS) - 1):
        planned = await bench.plan(turn)
        bench.send(planned)
        assert plans.setdefault(turn, planned.plan.edits) == planned.plan.edits


async def test_e1_states_of_requests_that_were_shed_are_bounded(opened: CachedStore) -> None:  # noqa: F811
    planned = await Bench(opened).plan(len(ENDS) - 1)
    history, live, state = planned.context.conversation, planned.context.live, planned.plan.state
    for number in range(100):
        live.add_reached(f"{number}", history, state)
    assert ("99", history.end_anchor(state.step - 1)) in live.steps
    assert len(live.steps) == conversation.STEPS
