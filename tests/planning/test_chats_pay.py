"""M5, N: chats without tools, where a summary is made only if it pays: what whole chats cost at real prices, with all
that their summaries cost, beside doing nothing."""

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pytest

from policies.assemble import PlanOptions, assemble
from policies.context import Summarizing, Want
from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, converse
from policies.model.memory import Memory
from policies.model.summary_record import Criteria, SummaryCost, SummaryRecord
from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.ledger import limit_of_chats
from policies.money.prices import BudgetLimits
from policies.planning.plan import plan
from policies.presets import PRESETS, SMALL_WINDOW
from policies.text.transcript import size
from proxy.lab.generators.chats import chat
from tests.kit.histories import Json, body_of
from tests.kit.paths import TRANSCRIPTS

WRITERS = {
    "gpt-5.4": "gpt-5.4-mini",
    "gpt-6.1-sol": "gpt-6-luna",
    "claude-opus-5-5": "claude-haiku-5-5",
    "claude-fable-5-2": "claude-haiku-5-5",
}
"""The models whose prices count, and those that write their summaries."""
MOST, WORDS = 1.02, "It was decided so, and what was said of it before counts no more. "
"""What a chat may cost at its end, of doing nothing; what summaries say."""
FAR, SLACK = 1.3, 0.015
"""At so many times the requests that a chat had when it last asked for a summary, that summary has paid. By so much a
first one may exceed its limit: it is longer than expected, or more arrived with it."""
CRITERIA, COUNT = Criteria("p", "prompt-1"), Counter(encoding_for("gpt-5.4"))
RECORDED = (
    TRANSCRIPTS / "chat-locomo-26.json",
    TRANSCRIPTS.parent / "clients" / "chat-companion.json",
    TRANSCRIPTS.parent / "clients" / "chat-locomo-41.json",
)


@dataclass
class Served:
    """What became of a chat."""

    bills: list[float]
    """The input bill so far, of doing nothing, with each request."""
    sizes: list[int]
    """Tokens of each prompt."""
    asked: list[int]
    """The requests that asked for a summary."""
    adopted: list[int]
    """Those with which one came to stand."""
    whole: float = 0.0
    """The whole bill at the end, of doing nothing."""


def served(
    session: Json, model: str, preset: str = "adaptive", window: int | None = None, usable: bool = True
) -> Served:
    """Serve a chat request by request; the summary that one asks for is there with the next, to be used or not."""
    prices, writer = prices_for(model), Summarizing(CRITERIA, prices_for(WRITERS[model]), 800, 0.0)
    api, messages = DIALECTS["openai_chat"], session["messages"]
    request = api.split(body_of(messages, None, model=model))
    assert request is not None
    read = [api.read(request.raw(at), COUNT) for at in range(len(request.spans))]
    options = PlanOptions(PRESETS[preset], prices, limits=BudgetLimits(window=window), summarizing=writer)
    settings = assemble(api, request, converse(read), COUNT, options).settings
    records: list[SummaryRecord] = []
    state, answers, done = None, 0.0, Served([], [], [], [])
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        conversation = converse(read[:at])
        planned = plan(conversation, settings, Memory(summaries=tuple(records)), state)
        state, ledger = planned.state, planned.state.ledger
        if planned.adopted:
            done.adopted.append(len(done.sizes))
        for want in planned.wants:
            done.asked.append(len(done.sizes))
            records.append(record_of(want, conversation, str(len(records)), usable))
        paid = ledger.paid + sum(writer.cost(each, prices) for each in records if each.id not in state.booked)
        answers += COUNT(message["content"]) * prices.output / prices.input
        done.bills.append(paid / ledger.baseline)
        done.sizes.append(settings.head + ledger.total)
        done.whole = (paid + answers) / (ledger.baseline + answers)
    return done


def record_of(want: Want, conversation: Conversation, id: str, usable: bool) -> SummaryRecord:
    """The summary that is wanted, with what writing it takes."""
    span = range(conversation.index[want.since], conversation.index[want.last] + 1)
    tokens, text = int(want.most * 0.75), WORDS * (int(want.most * 0.75) // COUNT(WORDS))
    before = want.tokens if want.previous else 0
    return SummaryRecord(
        *(id, "c", want.first, want.last, (), "m", text if usable else "", size(conversation, span), tokens, 0.0),
        *(CRITERIA.policy, CRITERIA.prompt),
        generation=want.generation,
        previous=want.previous,
        rejected="" if usable else "short",
        spent=SummaryCost(1, 700 + before + size(conversation, span), 0, 0, tokens),
    )


@pytest.mark.parametrize("model", WRITERS)
@pytest.mark.parametrize(
    ("turns", "answer", "paste"),
    [(60, 200, 800), (60, 780, 0), (90, 260, 0), (90, 400, 400), (50, 1_560, 0), (70, 150, 100)],
)
def test_m5_a_chat_costs_no_more_than_doing_nothing(model: str, turns: int, answer: int, paste: int) -> None:
    done = served(chat(311, turns, answer, paste), model)
    assert done.bills[-1] <= MOST
    assert done.whole <= MOST


@pytest.mark.parametrize("model", WRITERS)
@pytest.mark.parametrize(
    ("seed", "turns", "answer", "paste"), [(521, 150, 260, 0), (522, 120, 800, 300), (523, 110, 600, 100)]
)
def test_m5_a_chat_that_ends_at_any_request_loses_little_and_soon_nothing(
    model: str, seed: int, turns: int, answer: int, paste: int
) -> None:
    done = served(chat(seed, turns, answer, paste), model)
    assert max(done.bills[20:]) <= limit_of_chats(prices_for(model)) + SLACK
    first, *later = [*done.asked, len(done.bills)]
    assert all(bill <= MOST for bill in done.bills[:first] + done.bills[ceil(FAR * (first + 1)) :])
    assert all(bill <= MOST for at in later for bill in done.bills[at:])


@pytest.mark.parametrize(("model", "most"), [("gpt-5.4", 0.6), ("gpt-6.1-sol", 0.75), ("claude-opus-5-5", 0.75)])
def test_m5_long_answers_are_still_worth_a_summary(model: str, most: float) -> None:
    done = served(chat(312, 90, 780), model)
    assert done.bills[-1] <= most
    assert done.adopted == [at + 1 for at in done.asked if at + 1 < len(done.sizes)]


@pytest.mark.parametrize("preset", ["adaptive", "rolling"])
def test_m5_the_next_summary_waits_until_the_prompt_has_grown_by_half(preset: str) -> None:
    done = served(chat(313, 110, 800, 40), "gpt-6.1-sol", preset)
    left = [done.sizes[at] for at in done.adopted]
    asked = [done.sizes[at] for at in done.asked]
    assert len(left) >= 2
    assert all(tokens >= 1.5 * before for before, tokens in zip(left, asked[1:], strict=False))


@pytest.mark.parametrize("model", WRITERS)
def test_m5_a_summarizer_without_a_usable_answer_is_not_asked_at_any_price(model: str) -> None:
    done = served(chat(314, 90, 780), model, usable=False)
    assert done.asked
    assert not done.adopted
    assert max(done.bills[20:]) <= limit_of_chats(prices_for(model)) + SLACK
    assert done.bills[-1] <= MOST + 0.03


def test_w2_in_a_small_window_the_trigger_counts_whatever_it_costs() -> None:
    """A chat of pasted text: its summaries never pay."""
    session = chat(315, 40, 200, 800)
    small, large = (served(session, "gpt-6.1-sol", window=window) for window in (SMALL_WINDOW, SMALL_WINDOW + 1))
    assert small.sizes[small.asked[0] - 1] < 16_000 <= small.sizes[small.asked[0]]
    assert large.sizes[large.asked[0]] > 20_000  # only as the window comes near


@pytest.mark.parametrize("model", WRITERS)
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_m5_recorded_chats_cost_no_more_than_doing_nothing(model: str, path: Path) -> None:
    if not path.exists():
        pytest.skip("no recorded sessions here")
    done = served(json.loads(path.read_text()), model)
    assert done.bills[-1] <= MOST
    assert done.whole <= MOST
