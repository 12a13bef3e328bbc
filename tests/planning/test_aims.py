"""W1, W2: what the aim decides, in whole sessions at real prices; a size to keep below, and small windows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from policies.compact import Compacted
from policies.context import Aim, Context, Summarizing
from policies.model.conversation import Conversation
from policies.model.edits import Fold, Replace
from policies.model.parameters import Trigger
from policies.money.catalog import prices_for
from policies.money.ledger import SMALLEST
from policies.money.prices import BudgetLimits, Prices
from policies.planning.plan import plan
from policies.rules.recap import Recap
from policies.rules.summarize import Summarize
from policies.rules.trim import Trim
from tests.kit.histories import TOOLS, Json, requests
from tests.kit.talk import PREFIX_PRICES, ROOMY, conversation_of, runs, says, setup, user
from tests.planning.test_summary_laws import CRITERIA, Server

MODELS = ("gpt-4o", "gpt-5.4", "claude-sonnet-4-5")


def chat(turns: int, words: int = 600) -> list[Json]:
    """Questions and answers of so many words, none like another."""
    said: list[Json] = []
    for turn in range(turns):
        answer = " ".join(f"w{turn * words + word}" for word in range(words // 4))
        said += [user(f"Question {turn}: what comes after step {turn}?"), says(f"{answer} and so on. ")]
    return [*said, user("And now?")]


def agent(turns: int, lines: int = 60) -> list[Json]:
    """Commands and their output, none like another."""
    steps = [
        message
        for turn in range(turns)
        for message in runs(f"make part-{turn}", "\n".join(f"part {turn}: line {n} is done" for n in range(lines)))
    ]
    return [user("Build it."), *steps, says("done")]


def writer(turns: int) -> list[Json]:
    """Files written one after the other: what is long are the arguments."""
    messages: list[Json] = [user("Write it.")]
    for turn in range(turns):
        written = "\n".join(f"value_{turn}_{line} = {turn * line}" for line in range(40))
        messages += runs(f"cat > part_{turn}.py <<EOF\n{written}\nEOF", "ok")
    return [*messages, says("done")]


def serving(model: str, policies: str, **changes: object) -> Server:
    """A server at the real prices of a model; its summaries are written by the same model."""
    prices = prices_for(model)
    written = Summarizing(CRITERIA, prices, 800, 0.0)
    return replace(Server(None, prices, policies=policies, summarizing=written), **changes)  # type: ignore[arg-type]


def served(server: Server, messages: list[Json]) -> list[Compacted]:
    return [server.serve(request) for request in requests([*messages, says("done")])]


def sizes(done: Sequence[Compacted]) -> list[int]:
    """Tokens of each prompt, its head included."""
    return [each.settings.head + each.plan.after for each in done]


# --- summaries ---


@pytest.mark.parametrize("model", MODELS)
def test_w1_for_the_context_a_summary_is_asked_for_at_its_trigger_and_stands_with_the_next_request(model: str) -> None:
    done = served(serving(model, "chat", tools=None), chat(26))
    asked = [at for at, each in enumerate(done) if each.plan.wants]
    adopted = [at for at, each in enumerate(done) if each.plan.adopted]
    assert asked == [7, 10, 13, 16, 19, 22, 25]
    assert adopted == [at + 1 for at in asked]
    reasons = {at: each.plan.reason for at, each in enumerate(done)}
    assert {at for at, reason in reasons.items() if reason} == {*adopted}
    assert {reasons[at] for at in adopted} == {"checkpoint:context"}
    for at in adopted:  # four whole turns and the new question
        conversation, summary = done[at].conversation, done[at].plan.summary
        assert summary is not None
        assert summary.origin is not None
        assert conversation.steps - 1 - conversation.blocks[conversation.index[summary.origin.last]].turn - 1 == 4


@pytest.mark.parametrize("model", MODELS)
def test_w1_for_the_bill_the_same_summary_waits_until_it_pays(model: str) -> None:
    done = served(serving(model, "chat", tools=None, aim="bill"), chat(45))
    asked = [at for at, each in enumerate(done) if each.plan.wants]
    adopted = [at for at, each in enumerate(done) if each.plan.adopted]
    assert not asked or asked[0] > 20
    assert {done[at].plan.reason for at in adopted} <= {"checkpoint:summary"}
    bills = [each.plan.state.ledger for each in done]
    assert all(bill.paid <= 1.05 * bill.baseline for bill in bills)


def test_w1_the_aim_of_a_request_goes_before_that_of_the_preset() -> None:
    done = served(serving("gpt-4o", "rolling", tools=None, aim="context"), chat(60, words=1_000))
    adopted = [at for at, each in enumerate(done) if each.plan.adopted]
    assert adopted
    first = done[adopted[0] - 1].plan
    assert first.wants
    assert first.before >= 12_000 > done[adopted[0] - 2].plan.before
    assert {done[at].plan.reason for at in adopted} == {"checkpoint:context"}


# --- offers by rule ---


def shortened(conversation: Conversation, context: Context) -> Iterator[Replace]:
    """Offers the output of two turns ago, once."""
    arrived = conversation.arrived(max(0, context.step - 2))
    for at in arrived:
        if conversation.blocks[at].kind == "result" and not context.excess:
            yield Replace(conversation.blocks[at].anchor, "[narrows: gone]", "test")


@pytest.mark.parametrize(("high", "batch"), [(90_000, SMALLEST), (8_000, 1_000)])
def test_w1_for_the_context_offers_are_carried_out_in_batches_whether_they_pay_or_not(high: int, batch: int) -> None:
    """What stays in the provider's cache costs nothing here: no rewrite ever pays."""
    budget = replace(ROOMY, high=high, low=high // 2)
    free = setup(shortened, prices=replace(PREFIX_PRICES, read=0.0), budget=budget)
    fired: list[int] = []
    state = None
    for at, request in enumerate(requests(agent(40, lines=60))):
        conversation = conversation_of(*request)
        before = state.ledger.total if state else 0
        done = plan(conversation, replace(free, aim="context"), None, state)
        assert plan(conversation, free).edits == () or high < 90_000
        arrived = done.state.ledger.original - (state.ledger.original if state else 0)
        if done.reason:
            assert done.reason == "checkpoint:context"
            gone = before + arrived - done.after
            assert max(batch, (before + arrived) // 10) <= gone < 2 * max(batch, (before + arrived) // 10)
            fired.append(at)
        state = done.state
    assert len(fired) >= 5
    assert all(later - earlier > 1 for earlier, later in pairwise(fired))


# --- a size to keep below ---


@pytest.mark.parametrize("policies", ["adaptive", "gentle", "structural"])
def test_w2_prompts_stay_below_a_size_with_checkpoints_that_leave_room(policies: str) -> None:
    session = [*writer(30), *chat(25)]
    size = max(sizes(served(serving("gpt-5.4", policies), session))) // 2
    done = served(serving("gpt-5.4", policies, limits=BudgetLimits(context_tokens=size)), session)
    assert max(sizes(done)) <= size
    assert "checkpoint:window" not in {each.plan.reason for each in done}
    full = [at for at, each in enumerate(done) if each.plan.reason == "checkpoint:context"]
    assert full or any(each.plan.adopted for each in done)  # a summary was asked for ahead of need
    if policies != "structural":  # its aim is the context, so it has other moments, too
        assert all(sizes(done)[at] <= done[at].settings.budget.low for at in full)
        assert len(full) < len(done) / 10


def test_w2_a_size_above_the_mark_of_the_window_changes_nothing() -> None:
    limits = BudgetLimits(window=16_000, context_tokens=15_000)
    done = served(serving("gpt-5.4", "coding-agent", limits=limits), writer(40))
    alone = served(serving("gpt-5.4", "coding-agent", limits=replace(limits, context_tokens=None)), writer(40))
    assert [each.body for each in done] == [each.body for each in alone]
    assert "checkpoint:context" not in {each.plan.reason for each in done}


def test_w2_what_is_protected_stays_where_it_has_more_than_the_size() -> None:
    task = user("Mind this rule. " * 1_000)
    done = served(serving("gpt-5.4", "coding-agent", limits=BudgetLimits(context_tokens=2_000)), [task, *agent(30)[1:]])
    assert all(each.conversation.blocks[0].text in each.body.decode() for each in done)
    assert min(sizes(done)[1:]) > 2_000
    assert sizes(done)[-1] < 2 * sizes(done)[0]


@pytest.mark.parametrize("window", [4_000, 8_000, 16_000])
@pytest.mark.parametrize("policies", ["chat", "rolling", "adaptive"])
def test_w2_in_small_windows_a_summary_comes_before_what_trims(policies: str, window: int) -> None:
    server = serving("gpt-4o", policies, tools=None, limits=BudgetLimits(window=window))
    done = served(server, chat(60, words=400))
    assert max(sizes(done)) <= window
    adopted = [each for each in done if each.plan.adopted]
    assert len(adopted) >= 2
    trimmed = [at for at, each in enumerate(done) for edit in each.plan.new if edit.by == "trim"]
    assert trimmed == []
    moves = sum(each.plan.reason.startswith("checkpoint:") for each in done)
    assert moves <= (0.5 if policies == "adaptive" else 0.34) * len(done)
    used = {each.plan.summary.origin.id for each in adopted if each.plan.summary and each.plan.summary.origin}
    assert len(used) >= len(server.memory.summaries) - 1  # what is paid for is used


@pytest.mark.parametrize(("aim", "is_steady"), [("bill", False), ("steady", True)])
def test_where_nothing_sent_changes_a_summary_is_asked_for_near_the_window_alone(aim: Aim, is_steady: bool) -> None:
    """Elsewhere it would be paid for and not stand."""
    policies = (
        Summarize(keep=9, when=(Trigger(),), batch=600, verbatim_tokens=300, generations=3, long_message=9_000),
        Trim(keep=2),
    )
    written, limits = Summarizing(CRITERIA, Prices("s", 0.1, 0.4), 100, 0.0), BudgetLimits(window=60_000)
    server = Server(None, prices_for("gpt-4o"), policies=policies, aim=aim, summarizing=written, limits=limits)
    done = served(server, agent(90))
    wants = {want.reason for each in done for want in each.plan.wants}
    adopted = {each.plan.reason for each in done if each.plan.adopted}
    assert adopted == {"checkpoint:window" if is_steady else "checkpoint:summary"}
    assert ("window" in wants, wants == {"window"}) == (is_steady, is_steady)


# --- records of old turns, and summaries ---


@pytest.mark.parametrize("keep", [2, 5, 9])
@pytest.mark.parametrize("reads", [3_000, 100_000])
def test_m7_a_summary_never_covers_a_part_of_a_record_of_old_turns(keep: int, reads: int) -> None:
    policies = (
        Recap(keep=6, batch=4, keep_share=0.4),
        Summarize(keep=keep, when=(Trigger(),), batch=600, verbatim_tokens=300, generations=3, long_message=9_000),
        Trim(keep=2),
    )
    written = Summarizing(CRITERIA, Prices("s", 0.1, 0.4, window=reads), 100, 0.0)
    server = Server(None, prices_for("gpt-4o"), policies=policies, aim="context", summarizing=written, tools=TOOLS)
    standing: list[range] = []
    covered = 0
    for request in requests(agent(45, lines=40)):
        done = server.serve(request)
        index = done.conversation.index
        for want in done.plan.wants:
            covered += 1
            assert not any(run.start <= index[want.last] < run.stop - 1 for run in standing)
        state = done.plan.state
        folds = [fold for fold in (*state.folds.values(), *state.offered_folds.values()) if isinstance(fold, Fold)]
        standing = [range(index[fold.first], index[fold.last] + 1) for fold in folds if not fold.origin]
    assert covered >= 5
