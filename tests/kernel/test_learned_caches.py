"""What the usage of replies shows of a cache, where that is not what the table says."""

from typing import Any

import pytest

from policies.money.caches import HOUR, MINUTE
from policies.money.prices import Usage
from tests.kit.running import compaction_of
from tests.kit.stage import Stage

PRICED = {"claude-x": {"input": 4, "write": 1.25, "breakpoints": True}, "plain": {"input": 1}}


async def differing(stage: Stage, model: str, pause: float, cached: bool, **settings: Any) -> tuple[list[str], float]:
    """Play a session with such pauses, and replies that all say so; what is then learned."""
    app = await stage.start(preset="structural", models=PRICED, **settings)
    caches, now = compaction_of(app).compactor.learned.caches, [1_000_000.0]  # type: ignore[attr-defined]
    compaction_of(app).compactor.planner.clock = compaction_of(app).compactor.clock = lambda: now[0]  # type: ignore[attr-defined]
    signs, said = list[str](), [{"role": "user", "content": "Read this: " + "word " * 2_000}]
    note = caches.note

    def noted(upstream_request: Any, usage: Usage) -> str:
        sign: str = note(upstream_request, Usage(usage.prompt, usage.prompt // 2 if cached else 0, 0, 1))
        signs.append(sign)
        return sign

    caches.note = noted
    for turn in range(9):
        await stage.ask(app, said, model=model, tools=None)
        said += [{"role": "assistant", "content": f"Yes, {turn}."}, {"role": "user", "content": f"And {turn}?"}]
        now[0] += pause
    return [sign for sign in signs if sign], caches.lifetime(model, "default", HOUR)


@pytest.mark.parametrize(
    ("model", "pause", "cached", "said", "lifetime"),
    [
        ("plain", 10, True, [], HOUR),
        ("plain", 10, False, ["uncached"], HOUR),
        ("plain", 20 * MINUTE, False, [], HOUR),  # it may report no cache at all
        ("plain", 20 * MINUTE, True, [], HOUR),
        ("plain", 2 * HOUR, True, ["longer"], 2 * HOUR),
        ("plain", 2 * HOUR, False, [], HOUR),
    ],
)
async def test_what_replies_show_of_a_cache_is_learned_and_told_once(
    stage: Stage, model: str, pause: float, cached: bool, said: list[str], lifetime: float
) -> None:
    assert await differing(stage, model, pause, cached) == (said, lifetime)


async def test_a_cache_that_reads_without_marks_is_told(stage: Stage) -> None:
    assert await differing(stage, "claude-x", 10, True, own_marks="never") == (["unmarked"], HOUR)
