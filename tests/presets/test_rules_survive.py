"""What a person lays down outlives summaries that keep nothing of it: rules after 20 rounds, by every preset."""

import pytest

from policies.presets import PRESETS
from tests.kit.histories import Json
from tests.kit.summed import NOTHING, SummedConversation

ROUNDS = 20
RULES = (
    "You must never touch main.py.",
    "Always answer in French, whatever the question.",
    "The deadline is 2027-03-14; remember that.",
    "Never order from Brelox again.",
    "Only Tavani may sign, and the limit is 4812 euros.",
)
ANSWERS = {"agent-summary": 6_000, "deep": 8_000, "harness": 4_000}
"""Tokens of an answer, where moments are far apart; else short ones do."""
SUMMARIZING = [name for name, preset in PRESETS.items() if preset.summarizes]


@pytest.mark.parametrize("preset", SUMMARIZING)
def test_m5_the_rules_of_a_person_are_alive_after_20_adopted_summaries(preset: str) -> None:
    conversation, adopted = SummedConversation(preset, "gpt-4o"), 0
    messages: list[Json] = [{"role": "system", "content": "You help one person."}]
    answer = "All of it comes in order. " * (ANSWERS.get(preset, 1_500) * 4 // 26)
    for turn in range(600):
        rule = RULES[turn // 2] if turn % 2 and turn // 2 < len(RULES) else ""
        question = f"{rule} Question {turn}: and then?".strip()
        sent = conversation.ask([*messages, {"role": "user", "content": question}])
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": f"Answer {turn}. {answer}"},
        ]
        adopted += sent.is_adopted
        stated = [each for each in RULES if any(each in str(message["content"]) for message in messages[:-1])]
        assert [each for each in stated if each not in sent.text] == [], f"lost at turn {turn}, summary {adopted}"
        if adopted == ROUNDS:
            break
    assert adopted == ROUNDS
    assert len({record.id for record in conversation.records}) >= ROUNDS
    assert NOTHING in sent.text, "what stands keeps none of the rules: they are there in the person's own words"
    assert not any(rule in NOTHING for rule in RULES)
