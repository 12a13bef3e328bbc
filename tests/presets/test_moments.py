"""The first summary of each preset is asked for when its page says, at real prices, and what its page says stays.

Planned by the real planner without sockets; the request at which a summary is asked for is its moment.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest

from policies.presets import SMALL_WINDOW
from policies.text.stubs import framed
from proxy.lab.generators.loops import generated
from tests.kit.histories import Json
from tests.kit.summed import PlannedTurn, SummedConversation

REAL = ("gpt-4o", "gpt-5.4", "gpt-6-sol", "claude-sonnet-5", "claude-opus-5-5")
LATEST = {
    "gpt-4o": 102_435,
    "gpt-5.4": 250_648,
    "gpt-6-sol": 250_648,
    "claude-sonnet-5": 847_996,
    "claude-opus-5-5": 847_996,
}
"""The tokens at which any summary is asked for at the latest: a little below the high mark, which follows from the
window without the answer, or from a price tier."""
HALF = {**dict.fromkeys(REAL, 500_000), "gpt-4o": 64_000, "gpt-5.4": 250_648, "gpt-6-sol": 250_648}
"""Half of the window, or the latest where that is sooner."""


def talk(turns: int, tokens: int) -> list[Json]:
    """Questions, each with an answer of about so many tokens."""
    messages: list[Json] = [{"role": "system", "content": "Answer in short sentences."}]
    for turn in range(turns):
        answer = f"Answer {turn}. " + "All of it comes in order. " * (tokens * 4 // 26)
        messages += [
            {"role": "user", "content": f"Question {turn}: and then?"},
            {"role": "assistant", "content": answer},
        ]
    return messages


def asked(
    preset: str, model: str, tokens: int, turns: int, adoptions: int = 1, window: int | None = None
) -> list[PlannedTurn]:
    """The requests of a chat until a summary has been adopted so many times."""
    conversation, messages = SummedConversation(preset, model, window=window), talk(turns, tokens)
    grown: list[PlannedTurn] = []
    for turn in range(turns):
        grown.append(conversation.ask(messages[: 2 * turn + 2]))
        adoptions -= grown[-1].is_adopted
        if not adoptions:
            return grown
    raise AssertionError(f"no summary of {preset} in {turns} turns at the prices of {model}")


def moments(grown: Sequence[PlannedTurn]) -> list[int]:
    """The numbers of the requests that ask for a summary, from 0: as many whole turns as stand before them."""
    return [at for at, each in enumerate(grown) if each.wants]


def standing(grown: Sequence[PlannedTurn]) -> list[int]:
    """The tokens of each request's history before anything of it is rewritten: as sent so far, and what has arrived."""
    new = [after.plan.before - before.plan.before for before, after in pairwise(grown)]
    return [grown[0].plan.before, *(each.plan.after + tokens for each, tokens in zip(grown, new, strict=False))]


@cache
def loop(requests: int) -> Json:
    """An agent that reads one file after the other."""
    return generated("read-loop", 201, requests)


def looped(preset: str, model: str, requests: int, window: int | None = None) -> list[PlannedTurn]:
    """The requests of such an agent."""
    conversation, body = SummedConversation(preset, model, window=window), loop(requests)
    messages = body["messages"]
    ends = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    return [conversation.ask(messages[:end], tools=body["tools"]) for end in ends]


def staying(turn: PlannedTurn) -> list[Json]:
    """The messages behind the summary and the words of people that it carries."""
    messages = turn.sent["messages"]
    behind = max(
        at for at, each in enumerate(messages) if framed(each["content"]) or "<user_message>" in each["content"]
    )
    closing = "<user_message>" in messages[behind]["content"] and messages[behind + 1]["role"] == "assistant"
    return list(messages[behind + 1 + closing :])


@pytest.mark.parametrize("model", REAL)
@pytest.mark.parametrize("tokens", [260, 780, 1_560])
def test_w1_chat_asks_when_seven_whole_turns_stand_and_keeps_four(model: str, tokens: int) -> None:
    grown = asked("chat", model, tokens, 40, adoptions=4)
    first, *later = moments(grown)
    assert first == 7
    assert grown[first].turns == 7
    # the next one is asked for when six turns stand again, made of the one before and of the turns since
    assert [grown[at].turns for at in later] == [6] * len(later)
    assert all(each.wants[0].previous for at in later if (each := grown[at]) and each.wants[0].reason == "rolling")
    adopted = [each for each in grown if each.is_adopted]
    assert [sum(m["role"] == "assistant" for m in staying(each)) for each in adopted] == [4] * 4
    assert grown[later[0]].wants[0].reason == "rolling"
    # at most one fold in two turns
    assert all(after - before >= 2 for before, after in zip([first, *later], later, strict=False))


@pytest.mark.parametrize("model", REAL)
def test_w1_agent_summary_asks_at_120_000_tokens_and_keeps_six_messages(model: str) -> None:
    grown = asked("agent-summary", model, 3_000, 60)
    (moment,), mark = moments(grown), min(120_000, LATEST[model])
    assert not grown[moment].plan.edits, "nothing is thrown away before, also where the window cannot hold so much"
    assert mark - 2 * 3_100 <= grown[moment].plan.after <= mark + 3_100
    assert len(staying(grown[-1])) == 7, "the newest six, and the new prompt"


@pytest.mark.parametrize("model", REAL)
def test_w1_harness_asks_at_80_messages(model: str) -> None:
    grown = asked("harness", model, 200, 50)
    (moment,) = moments(grown)
    assert len(grown[moment].sent["messages"]) == 80
    assert sum(m["role"] == "assistant" for m in staying(grown[-1])) == 2


@pytest.mark.parametrize("model", REAL)
def test_w1_harness_asks_at_half_the_window_where_that_comes_first(model: str) -> None:
    grown = asked("harness", model, 16_000, 50)
    (moment,) = moments(grown)
    assert HALF[model] - 2 * 16_100 <= grown[moment].plan.after <= HALF[model] + 16_100
    assert len(grown[moment].sent["messages"]) < 80


@pytest.mark.parametrize("model", REAL)
def test_w1_deep_asks_at_85_percent_of_the_window_and_keeps_a_tenth(model: str) -> None:
    grown = asked("deep", model, 6_000, 150)
    (moment,) = moments(grown)
    assert not grown[moment].plan.edits
    assert LATEST[model] - 2 * 6_100 <= grown[moment].plan.after <= LATEST[model] + 6_100
    window = {"gpt-4o": 128_000, "gpt-5.4": 1_050_000, "gpt-6-sol": 1_050_000}.get(model, 1_000_000)
    stays = sum(len(message["content"]) // 4 for message in staying(grown[-1]))
    tenth = min(0.1 * window, LATEST[model] / 0.95 / 3)  # near the window a third of what fits stays, at most
    assert tenth - 6_100 <= stays <= tenth + 6_100


@pytest.mark.parametrize("preset", ["chat", "agent-summary", "harness", "deep"])
def test_w1_it_is_adopted_with_the_next_request_where_it_is_there_in_time(preset: str) -> None:
    grown = asked(preset, "gpt-4o", 3_000, 60)
    assert moments(grown) == [len(grown) - 2]
    assert grown[-1].plan.reason == "checkpoint:context"


IN_CHATS = [(tokens, model) for tokens in (780, 1_560) for model in REAL]
IN_CHATS.remove((780, "claude-opus-5-5"))  # where the model itself writes, that pays within no 250 turns


@pytest.mark.parametrize(("tokens", "model"), IN_CHATS)
def test_w1_adaptive_asks_in_chats_where_it_pays_and_not_before_16_000_tokens_stand(tokens: int, model: str) -> None:
    grown = asked("adaptive", model, tokens, 250)
    stood, (moment,) = standing(grown), moments(grown)
    assert stood[moment] >= 16_000
    assert moment == len(grown) - 2
    assert grown[-1].plan.reason == "checkpoint:summary"


@pytest.mark.parametrize("model", REAL)
@pytest.mark.parametrize("tokens", [260, 780, 1_560])
def test_w1_adaptive_asks_in_chats_of_small_windows_whenever_half_is_full(model: str, tokens: int) -> None:
    grown = asked("adaptive", model, tokens, 150, adoptions=2, window=SMALL_WINDOW)
    stood, asks = standing(grown), moments(grown)
    assert asks == [at for at, each in enumerate(stood) if each >= 16_000 and not grown[at].is_adopted]
    assert len(asks) == 2
    assert {each.plan.reason for each in grown if each.is_adopted} == {"checkpoint:context"}


@pytest.mark.parametrize("model", REAL)
def test_w1_adaptive_with_tools_asks_before_a_small_window_is_full_and_not_before_half_of_it(model: str) -> None:
    grown = looped("adaptive", model, 30, window=40_000)  # there the high mark is near before 60 % of it are reached
    assert moments(grown)
    assert all(standing(grown)[at] >= 20_000 for at in moments(grown))


def test_w1_adaptive_with_tools_never_asks_before_100_000_tokens_or_60_percent_of_the_window() -> None:
    sooner, grown = looped("rolling", "gpt-4o", 60), looped("adaptive", "gpt-4o", 60)
    least = 0.6 * 128_000
    assert min(standing(sooner)[at] for at in moments(sooner)) < least  # where it would have paid
    assert all(standing(grown)[at] >= least for at in moments(grown))


def test_w1_rolling_never_asks_before_12_000_tokens_and_asks_where_that_pays() -> None:
    for grown in (asked("rolling", "gpt-4o", 780, 80), looped("rolling", "gpt-4o", 60)):
        assert all(standing(grown)[at] >= 12_000 for at in moments(grown))
    assert any(each.is_adopted for each in grown)
