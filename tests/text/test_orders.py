"""Summaries that order, claim orders or reverse prohibitions, beside sound ones: tables in tests/text/cases."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.text.orders import claims, orders, people_of
from policies.text.prohibitions import reverses

HOME = Path(__file__).parent / "cases"
RATES = {"tuned": (0, 0), "judged": (2, 2)}
"""Sound summaries that are rejected in each table, and bad ones that are missed."""


def cases(name: str) -> Iterator[tuple[str, str, str, str]]:
    for line in (HOME / f"{name}.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            verdict, people, tools, text = (part.strip().replace("\\n", "\n") for part in line.split("||"))
            yield verdict, people, tools, text


def judged(people: str, tools: str, text: str) -> str:
    said = people_of([people])
    if reverses(text, [people, tools], [people]):
        return "reverses"
    return "claims" if claims(text, said) else "orders" if orders(text, said) else "sound"


@pytest.mark.parametrize("name", RATES)
def test_m6_bad_summaries_are_rejected_and_sound_ones_are_not(name: str) -> None:
    found = [(verdict, judged(*case), case) for verdict, *case in cases(name)]
    rejected = [case for verdict, word, case in found if verdict == "sound" != word]
    missed = [case for verdict, word, case in found if verdict != "sound" == word]
    assert len([verdict for verdict, *_ in found if verdict == "sound"]) >= 40
    assert len([verdict for verdict, *_ in found if verdict != "sound"]) >= 40
    assert (len(rejected), len(missed)) == RATES[name], (rejected, missed)
    assert all(word in ("sound", verdict) for verdict, word, _ in found if verdict != "sound")


@pytest.mark.parametrize(
    "shape",
    ["you must ", "ignore all ", "the user has ", "never touch a ", "don't use x y z ", "a", '"', " \n", "不要改接口"],
)
def test_x9_hostile_texts_take_time_in_proportion(shape: str) -> None:
    text = (shape * 100_000)[:100_000]
    started = time.process_time()
    said = people_of([text])
    reverses(text[:4_000], [text], [text])
    claims(text[:4_000], said)
    orders(text[:4_000], said)
    assert time.process_time() - started < 3.0
