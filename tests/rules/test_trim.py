"""`trim`: what can be made to fit is made to fit, however often room was made before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.money.prices import Budget
from policies.planning.plan import plan
from policies.planning.state import PlanState
from policies.rules.trim import Trim
from tests import examples
from tests.kit.histories import requests
from tests.kit.talk import PREFIX_PRICES, Json, call, conversation_of, gives, says, setup, user
from tests.planning.test_laws import thorough

TIGHT = Budget(4_000, 200, 2_800, 1_800, floor=0)
STUBS = 200
"""Tokens of what stands in the place of turns, at most."""


@settings(thorough, max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(5, 700), st.integers(5, 300)), min_size=12, max_size=24), st.integers(2, 7))
def test_c5_where_all_but_the_newest_turn_may_go_each_request_comes_below_the_mark(
    turns: list[tuple[int, int]], keep: int
) -> None:
    """A fold that a narrow request took from the window must not be in the way of the next one."""
    messages: list[Json] = [user("Begin.")]
    for number, (prose, output) in enumerate(turns):
        made = {**says("word " * prose), "tool_calls": [call("call_0", "bash", {"n": number})]}
        messages += [made, gives("text " * output)]
    setting = setup(Trim(keep=keep), budget=TIGHT, prices=PREFIX_PRICES)
    state: PlanState | None = None
    for request in requests([*messages, says("done")]):
        conversation = conversation_of(*request)
        done = plan(conversation, setting, None, state)
        newest = sum(done.state.ledger.sent[at] for at in conversation.arrived(conversation.steps - 1))
        assert newest + STUBS <= TIGHT.high, "else this shows nothing"
        assert done.after <= TIGHT.high
        state = done.state
