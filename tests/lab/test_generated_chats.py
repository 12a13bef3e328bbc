"""Generated chats: deterministic, of the size that they promise, different for each seed, and facts come up again."""

import json
import re
from statistics import fmean

import pytest
from typer.testing import CliRunner

from policies.model.tokens import Counter
from proxy.console.cli import command_line
from proxy.lab.generators.chats import chat
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import requests, session_of
from proxy.lab.replay.runs import replay_all

COUNT = Counter("o200k_base")


def texts(seed: int, turns: int, answer: int, role: str) -> list[str]:
    return [m["content"] for m in chat(seed, turns, answer)["messages"] if m["role"] == role]


@pytest.mark.parametrize("answer", [260, 780, 1_560])
@pytest.mark.parametrize("seed", [1, 7])
def test_answers_are_about_as_long_as_was_asked_for(seed: int, answer: int) -> None:
    sizes = [COUNT(text) for text in texts(seed, 60, answer, "assistant")]
    assert len(sizes) == 60
    assert 0.9 * answer < fmean(sizes) < 1.2 * answer
    assert max(sizes) > 1.5 * min(sizes)


def test_the_same_seed_gives_the_same_chat_and_another_one_other_words() -> None:
    assert chat(1, 20, 260) == chat(1, 20, 260)
    first, other = (set(re.findall(r"\w+", " ".join(texts(seed, 60, 780, "assistant")))) for seed in (1, 2))
    assert len(first) > 200
    assert len(first & other) < 0.7 * len(first)


def test_no_answer_stands_twice() -> None:
    answers = texts(3, 250, 260, "assistant")
    assert len(set(answers)) == len(answers)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_facts_and_rules_of_early_turns_are_asked_about_later(seed: int) -> None:
    questions, answers = texts(seed, 80, 260, "user"), texts(seed, 80, 260, "assistant")
    early, later = " ".join(questions[:10]), answers[20:]
    assert re.search(r"\b(Never|Always) ", early)
    stated = set(re.findall(r"\b\d{3,4}\b|\b[A-Z]{3}_\d{3}\b|without [A-Z]\w+", early))
    repeated = {name for name in stated if any(name in text for text in later)}
    assert len(repeated) >= 2


def test_each_turn_is_a_request_of_a_plain_chat() -> None:
    session = session_of(json.dumps(chat(1, 12, 260)).encode(), "chat", "chat")
    bodies = list(requests(session, "gpt-5.4", marks=False))
    assert len(bodies) == 12
    assert [message["role"] for message in bodies[-1]["messages"][:4]] == ["system", "user", "assistant", "user"]
    assert not any("tools" in body for body in bodies)


async def test_it_can_be_replayed() -> None:
    session = session_of(json.dumps(chat(1, 6, 260)).encode(), "chat", "chat")
    (report,) = await replay_all([session], Options(preset="coding-agent"))
    assert report.requests == 6
    assert report.faults == 0


def test_the_command_prints_it() -> None:
    printed = CliRunner().invoke(command_line(), ["generate", "chat", "--seed", "3", "--turns", "5", "--answer", "260"])
    assert json.loads(printed.stdout) == chat(3, 5, 260)


@pytest.mark.parametrize("words", [["chat", "--requests", "9"], ["read-loop", "--turns", "9"], ["talk"]])
def test_what_makes_no_session_is_refused(words: list[str]) -> None:
    refused = CliRunner().invoke(command_line(), ["generate", *words])
    assert refused.exit_code == 2
    assert "chat" in refused.stderr
