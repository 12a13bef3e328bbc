"""The preset `deep`: arguments first, from a lower mark on; large outputs behind pointers; near the end of the window a
summary for all but the newest tenth; and, where it is switched on, a log of the whole conversation."""

import json
from functools import lru_cache
from typing import Any

import pytest

from policies.compact import Compacted, compact
from policies.context import Summarizing
from policies.model.parameters import Trigger, Window
from policies.model.summary_record import Criteria
from policies.money.catalog import prices_for
from policies.money.prices import Budget, BudgetLimits, Prices
from policies.presets import PRESETS
from policies.recall import answer
from tests.kit.histories import TOOLS, Json
from tests.kit.stage import Stage
from tests.kit.visiting import conversation_page

WINDOW = 60_000
PRICES = prices_for("gpt-5.4")
BUDGET = BudgetLimits(window=WINDOW, reserve=0, floor=0).budget(PRICES)


POLICY: dict[str, Any] = {policy.name: policy for policy in PRESETS["deep"].configured}


def wrote(turn: int, lines: int = 300, output: str = "written") -> list[Json]:
    """A whole file as an argument (about 3,400 tokens), and an acknowledgment."""
    content = "".join(f"def step_{turn}_{line}(): return {line}\n" for line in range(lines))
    arguments = json.dumps({"path": f"src/part_{turn}.py", "content": content})
    call = {"id": f"c{turn}", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{turn}", "content": output},
    ]


def session(*steps: list[Json]) -> list[Json]:
    return [{"role": "user", "content": "Write the parts."}, *(message for step in steps for message in step)]


@lru_cache
def served(turns: int) -> Compacted:
    """A session of so many files, as `deep` sends it."""
    return compacted(session(*(wrote(turn) for turn in range(turns))))


def compacted(messages: list[Json], prices: Prices = PRICES, budget: Budget = BUDGET) -> Compacted:
    body = json.dumps({"model": prices.model, "messages": messages, "tools": TOOLS}).encode()
    summarizing = Summarizing(Criteria("p", "v"), prices_for("gpt-5.4-mini"), 800, 0.0)
    return compact(body, policies="deep", prices=prices, budget=budget, recall=True, summarizing=summarizing)


def clipped(done: Compacted) -> list[int]:
    """The turns whose arguments were left out."""
    index, blocks = done.conversation.index, done.conversation.blocks
    return [blocks[index[edit.at]].turn for edit in done.plan.edits if edit.by == "clip"]  # type: ignore[union-attr]


def test_m7_its_numbers_are_those_of_its_document() -> None:
    assert POLICY["summarize"].when == (Trigger(share=0.85),)
    assert POLICY["summarize"].keep == Window(share=0.1)
    (mark,) = POLICY["clip"].when
    assert mark.share < 0.85
    assert POLICY["clip"].keep == POLICY["clip"].keep_writes == Window(share=0.1)


def test_v4_nothing_is_clipped_before_the_lower_mark_then_all_but_the_newest_tenth() -> None:
    turns = next(turn for turn in range(5, 40) if clipped(served(turn)))
    before = served(turns - 1).plan
    assert before.edits == ()
    assert before.before < 0.6 * WINDOW <= served(turns).plan.before + 1_000
    kept = [turn for turn in range(turns) if turn not in clipped(served(turns))]
    assert kept == [turns - 1]  # about 3,400 tokens each: one fits a tenth of 60,000
    assert clipped(served(turns)) == list(range(turns - 1))


def test_v4_later_ones_go_as_they_leave_the_newest_tenth() -> None:
    turns = next(turn for turn in range(5, 40) if clipped(served(turn)))
    assert clipped(served(turns + 3)) == list(range(turns + 2))


def test_r1_what_was_clipped_is_recalled_byte_for_byte() -> None:
    done = served(20)
    (at,) = (i for i, block in enumerate(done.conversation.blocks) if block.kind == "call" and block.turn == 0)
    told = answer(done.conversation, json.dumps({"ref": done.conversation.ref(at), "part": "chars 0-200"}))
    assert done.conversation.blocks[at].text[:150] in told.text


@pytest.mark.parametrize(("lines", "hidden"), [(1_500, False), (4_000, True)])
def test_r1_a_very_large_output_becomes_a_pointer_once_answered(lines: int, hidden: bool) -> None:
    output = "".join(f"row {line}: all is well\n" for line in range(lines))
    done = compacted(session(wrote(0, 5, output), wrote(1, 5)))
    (tokens,) = (block.tokens for block in done.conversation.blocks if block.text == output)
    assert (tokens > POLICY["offload"].over) is hidden
    assert [edit.by for edit in done.plan.edits] == ["offload"] * hidden
    assert done.plan.after < 1_000 or not hidden


def test_m7_at_85_percent_of_the_window_a_summary_is_wanted() -> None:
    """Where nothing is reserved for the answer: a reserve brings the window's end, and so the summary, nearer."""
    said = [{"role": "user", "content": "Write the parts."}]
    for turn in range(50):
        said += [{"role": "assistant", "content": f"part {turn} is done. " * 200}, {"role": "user", "content": "Next."}]
    done = [compacted(said[:end]) for end in range(81, len(said), 2)]
    first = next(each for each in done if each.plan.wants)
    assert done[done.index(first) - 1].plan.before < 0.85 * WINDOW <= first.plan.before + 100


def test_m7_before_the_window_is_full_a_summary_is_wanted_of_all_but_the_newest_tenth() -> None:
    prices = prices_for("gpt-4o")
    budget, window = BudgetLimits().budget(prices), prices.window
    # with the usual reserve the high mark is below 85 % of the window
    assert budget.high < 0.85 * window
    said = [{"role": "user", "content": "Write the parts."}]
    for turn in range(40):
        said += [{"role": "assistant", "content": f"part {turn} is done. " * 600}, {"role": "user", "content": "Next."}]
    done = (compacted(said[:end], prices, budget) for end in range(41, len(said), 2))
    first = next(each for each in done if each.plan.wants or each.plan.edits)
    (want,) = first.plan.wants
    assert first.plan.edits == ()
    assert budget.high - 2 * 3_700 < first.plan.before < budget.high  # two turns ahead: one has about 3,600
    rest = first.conversation.blocks[first.conversation.index[want.last] + 1 :]
    kept = sum(block.tokens + block.frame for block in rest)
    assert 0.07 * window < kept <= 0.1 * window + 3_700  # whole turns


@pytest.mark.usefixtures("patient")
async def test_m1_where_it_is_switched_on_the_log_has_the_whole_conversation_each_message_once(stage: Stage) -> None:
    messages = [*session(*(wrote(turn, 20) for turn in range(4))), {"role": "assistant", "content": "done"}]
    app = await stage.start(preset="deep", history=True)
    sent = await stage.grow(app, messages)
    name = sent[-1].headers["x-narrows-conversation"]
    await app.close(1)  # what waits is written
    app = await stage.start(preset="deep", history=True)
    lines = (await conversation_page(stage, app, "GET", f"/{name}/history")).body.decode().splitlines()
    logged = [json.loads(line)["message"] for line in lines if "message" in json.loads(line)]
    answered = [message for message in logged if message.get("content") == "Understood."]
    assert len(answered) == len(sent)  # by the provider: this client writes something else in their place
    assert [message for message in logged if message not in answered] == messages[:-1]


@pytest.mark.usefixtures("patient")
async def test_m1_by_itself_it_keeps_no_log(stage: Stage) -> None:
    app = await stage.start(preset="deep")
    sent = await stage.ask(app, session(wrote(0, 20)))
    assert (
        await conversation_page(stage, app, "GET", f"/{sent.headers['x-narrows-conversation']}/history")
    ).status == 404
