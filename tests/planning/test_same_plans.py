"""S1: a history is planned alike at once, step by step, from memory, and after a fork, under each preset."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.context import Aim
from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, converse
from policies.model.memory import Memory, StepRecord
from policies.money.caches import ANTHROPIC, OPENAI
from policies.money.prices import Budget
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanState
from policies.presets import PRESETS, Preset
from policies.rules.trim import Trim
from tests import examples
from tests.kit.histories import RECORDING, Json, requests
from tests.kit.talk import MARK_PRICES, PREFIX_PRICES, call, letters, says, setup, system, user
from tests.planning.test_laws import AIMS, thorough

openai_chat = DIALECTS["openai_chat"]

CACHES: tuple[Json, ...] = (
    {"prices": PREFIX_PRICES},
    {"prices": replace(PREFIX_PRICES, read=0.5)},
    {"prices": MARK_PRICES, "cache": ANTHROPIC, "marks": ANTHROPIC.mark, "slots": 3, "marks_end": False},
    {"prices": MARK_PRICES, "cache": ANTHROPIC, "slots": 0},
    {"prices": MARK_PRICES, "cache": OPENAI, "marks": OPENAI.mark, "slots": 3},
)
BUDGETS = [Budget(*marks, floor=300) for marks in ((100_000, 1_000, 90_000, 50_000), (9_000, 1_000, 7_000, 4_600))]
TIGHT = Budget(4_000, 200, 2_800, 1_800, floor=0)
BELOW = replace(TIGHT, window=2_800, mark="context")
"""A size to keep below."""
NAMES = ["alpha", "src/core/main.py", "Error:", "4711", "parse_line", "return", "the", "λόγος", "{x}"]
CALLS = [("bash", {"command": line}) for line in ("ls -R", "cat a.py", "pytest -q", "sed -n 1,40p a.py", "curl x")]
CALLS += [("read_file", {"path": "a.py"}), ("write_file", {"path": "a.py", "content": "x = 1\n" * 300})]


def words(random: Random, most: int) -> str:
    return " ".join(random.choice([*NAMES, f"value_{random.randrange(99)}"]) for _ in range(random.randint(1, most)))


def working(random: Random) -> list[Json]:
    """A session of the shape of recordings: outputs repeat each other in part, calls are parallel or without an answer,
    results without a call, and system text stands in the middle."""
    files = ["\n".join("  " * random.randrange(3) + words(random, 8) for _ in range(80)) for _ in range(3)]
    messages = [user(words(random, 40))]
    for _ in range(random.randint(3, 30)):
        made = [call(f"call_{i}", *random.choice(CALLS)) for i in range(random.choice([0, 1, 1, 1, 2, 3]))]
        messages.append({**says(words(random, 120)), **({"tool_calls": made} if made else {})})
        for answered in [*made, {"id": "nobody"}][: random.choice([len(made), len(made), len(made) + 1])]:
            lines, at = random.choice(files).split("\n"), random.randrange(60)
            output = "\n".join([*lines[at : at + random.randint(1, 80)], "\x1b[0m\n\n\n" * random.randrange(3)])
            if random.random() < 0.95:
                messages.append({"role": "tool", "tool_call_id": answered["id"], "content": output})
        messages += [system("Mind it.")] * (random.random() < 0.05) + [user(words(random, 60))] * (not made)
    return [*messages, says("done")]


def carried(messages: list[Json], earlier: Conversation | None, read: dict[str, Any]) -> Conversation:
    """The conversation, with the messages read once: what it shares with an earlier one is taken from there."""
    raws = [json.dumps(message) for message in messages]
    return converse([read.setdefault(raw, openai_chat.read(raw.encode(), letters)) for raw in raws], earlier)


def outcome(planned: Plan) -> tuple[Any, ...]:
    state, ledger = planned.state, planned.state.ledger
    uses = {at: tuple(blocks) for at, blocks in state.uses.items()}
    offers = state.offers, state.offered_folds, ledger.saving, uses, state.used_by, state.cramped
    return planned.edits, planned.reason, planned.marks, planned.after, ledger.paid, ledger.baseline, offers


@pytest.mark.parametrize(
    "name", ["coding-agent", "gentle", "eager", "lossless", "structural", "deep", "records of short turns"]
)
@settings(thorough, max_examples=examples(8))
@given(st.randoms(use_true_random=False), st.sampled_from(CACHES), st.sampled_from([*BUDGETS, TIGHT, BELOW]), AIMS)
def test_s1_a_history_is_planned_alike_however_it_came(
    name: str, random: Random, cache: Json, budget: Budget, aim: Aim
) -> None:
    preset = PRESETS.get(name, Preset(RECORDING))
    setting = setup(*preset.policies, budget=budget, aim=aim, exceptions=preset.exceptions, **cache)
    state: PlanState | None = None
    before: Conversation | None = None
    known: dict[str, StepRecord] = {}
    read: dict[str, Any] = {}
    histories = requests(working(random))
    for request in histories:
        conversation = carried(request, before, read)
        planned = plan(carried(request, None, read), setting)
        assert outcome(plan(conversation, setting, None, state)) == outcome(planned)
        assert plan(conversation, setting, Memory(known)).edits == planned.edits
        anchor = conversation.end_anchor(conversation.steps - 1)
        record = known[anchor] = StepRecord(anchor, planned.new, planned.reason, recall=True)
        repeated = plan(conversation, setting, Memory({anchor: record}), state)
        assert outcome(repeated) == outcome(planned)
        folds = [range(first, conversation.index[fold.last] + 1) for first, fold in planned.state.folds.items()]
        assert planned.state.folded == {at for run in folds for at in run}, "folded as long as a fold stands, no longer"
        before, state = conversation, repeated.state
    fork = [*histories[-1][:-1], user("Something else.")]
    assert outcome(plan(carried(fork, before, read), setting)) == outcome(plan(carried(fork, None, read), setting))


def test_s1_a_fold_goes_whole_into_another_or_stays() -> None:
    """Where nothing else helps, `trim` leaves out turns that it would keep; a step later it offers the oldest alone."""
    messages = [user("Begin.")]
    for n, size in enumerate((50, 300, 100, 300, 100, 50, 900, 1500, 100)):
        made = call(f"call_{n}", "bash", {"n": n})
        output = {"role": "tool", "tool_call_id": made["id"], "content": "text " * size}
        messages += [{**says("word " * 200), "tool_calls": [made]}, output]
    for request in requests(messages):
        conversation = carried(request, None, {})
        state = plan(conversation, setup(Trim(keep=5), budget=BELOW, prices=PREFIX_PRICES)).state
        folds = [range(first, conversation.index[fold.last] + 1) for first, fold in state.folds.items()]
        assert state.folded == {at for run in folds for at in run}
