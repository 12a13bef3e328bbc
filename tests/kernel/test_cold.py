"""Caches that forget and caches that were never asked: what Narrows then does, by the table of cache facts."""

from typing import Any

import pytest

from tests.kit.stage import Exchange, Stage, ends, moved, working

pytestmark = pytest.mark.usefixtures("patient")

SESSION = working(7)
MARKED = "claude-marked"
KINDS: dict[str, tuple[str, dict[str, str] | None]] = {
    "five minutes": (MARKED, {}),
    "an hour": (MARKED, {"ttl": "1h"}),
    "any prefix": ("m", None),
}
"""The model, and what the client's mark asks for."""


def marked(messages: list[Any], mark: dict[str, str] | None) -> list[Any]:
    """With a mark at the system text, as a client sets it."""
    if mark is None:
        return messages
    part = {"type": "text", "text": messages[0]["content"], "cache_control": {"type": "ephemeral", **mark}}
    return [{**messages[0], "content": [part]}, *messages[1:]]


@pytest.mark.parametrize(
    ("kind", "pause", "prefix"),
    [
        ("five minutes", 290, "tail-cut"),
        ("five minutes", 310, "checkpoint:cold"),
        ("an hour", 310, "extended"),
        ("an hour", 3_700, "checkpoint:cold"),
        ("any prefix", 3_500, "tail-cut"),
        ("any prefix", 3_700, "checkpoint:cold"),
    ],
)
async def test_a_cache_is_cold_after_a_pause_longer_than_its_entries_live(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: str, pause: float, prefix: str
) -> None:
    clock = [1_800_000_000.0]
    stage.clock = lambda: clock[0]
    app = await stage.start()
    model, mark = KINDS[kind]
    for end in ends(SESSION)[-3:-1]:
        await stage.ask(app, marked(SESSION[:end], mark), model=model)
    await app.close(1)  # what was sent is remembered behind the request: now it is
    clock[0] += pause
    last = await stage.ask(await stage.start(), marked(SESSION[:-1], mark), model=model)
    assert last.prefix == prefix


async def test_s1_without_any_mark_nothing_is_cached_and_what_may_go_goes_at_once(stage: Stage) -> None:
    grown: dict[bool, list[Exchange]] = {}
    for asks in (True, False):
        said = marked(SESSION, {} if asks else None)
        app = await stage.start(store=f"sqlite:///{stage.path}-{asks}", own_marks="beside")
        grown[asks] = await stage.grow(app, said, model=MARKED)
        wiped = await stage.start(store=f"sqlite:///{stage.path}-{asks}-wiped", own_marks="beside")
        assert (await stage.ask(wiped, said[:-1], model=MARKED)).sent == grown[asks][-1].sent
        assert moved(grown[asks]) == []
    tokens = {asks: [int(e.headers["x-narrows-tokens-after"]) for e in grown[asks]] for asks in grown}
    assert sum(tokens[False]) < sum(tokens[True])
    assert all(request.usage is not None for request in stage.provider.requests)
    assert [r.usage.written for r in list(stage.provider.requests)[-9:] if r.usage] == [0] * 9


async def test_v7_a_mark_of_ours_never_stands_before_one_that_is_kept_for_longer(stage: Stage) -> None:
    app = await stage.start()
    part = {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    for end in ends(SESSION):
        last = await stage.ask(app, [*SESSION[:end], {"role": "user", "content": [part]}], model=MARKED)
        assert last.sent.count(b"cache_control") == 1
