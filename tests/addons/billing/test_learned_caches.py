"""What the usage of replies shows of a provider's cache."""

from types import SimpleNamespace
from typing import Any

from policies.model.memory import CacheLife, Sent, StepRecord
from policies.money.lifetimes import Lifetimes
from policies.money.prices import Usage
from proxy.kernel.understand import LearnedCaches

EARLIER = StepRecord("a")


def _note(caches: LearnedCaches, pause: float, cached: int, previous: StepRecord = EARLIER) -> str:
    settings = SimpleNamespace(
        cache=SimpleNamespace(mark=False, least=1_024),
        prices=SimpleNamespace(breakpoints=0),
        lifetimes=Lifetimes(3_600.0, 2.0),
    )
    context = SimpleNamespace(
        request=SimpleNamespace(model="gpt-5.4"),
        plan_settings=settings,
        conversation=SimpleNamespace(steps=9),
        lifetime=600.0,
    )
    request: Any = SimpleNamespace(
        planned=SimpleNamespace(previous=previous, context=context),
        notes=SimpleNamespace(record=SimpleNamespace(at=pause)),
        headers={"x-narrows-prefix": "extended"},
        client_request=SimpleNamespace(upstream="openai"),
    )
    return caches.note(request, Usage(5_000, cached, 0, 10))


def test_a_server_that_never_reports_cached_tokens_does_not_look_like_one_that_forgets() -> None:
    caches = LearnedCaches()
    assert [_note(caches, 120, 0) for _ in range(6)] == [""] * 6
    assert caches.lifetime("gpt-5.4", "openai", 600.0) == 600.0
    _note(caches, 120, 4_000)
    assert [_note(caches, 120, 0) for _ in range(5)][-1] == "shorter"


def test_a_longer_lifetime_is_the_shortest_of_the_pauses_that_showed_it() -> None:
    caches = LearnedCaches()
    for pause in (900, 700, 1_000, 1_200, 5_000):
        _note(caches, pause, 4_000)
    assert caches.lifetime("gpt-5.4", "openai", 600.0) == 700


def sent(**fields: Any) -> StepRecord:
    return StepRecord("a", sent=Sent(1, "", 0, "", 1, "", "", "", **fields))


def test_of_what_was_kept_warm_or_asked_to_live_longer_no_usual_lifetime_is_learned() -> None:
    caches = LearnedCaches()
    for previous in (sent(life=CacheLife(is_longer=True)), sent(warmed_at=800.0)):
        assert [_note(caches, 900, 4_000, previous) for _ in range(6)] == [""] * 6
    assert caches.lifetime("gpt-5.4", "openai", 600.0) == 600.0


def test_p2_where_marks_ask_for_the_longer_lifetime_in_vain_that_is_noticed() -> None:
    caches, longer = LearnedCaches(), sent(life=CacheLife(is_longer=True))
    assert [_note(caches, pause, 0, longer) for pause in (500, 900, 4_000)] == ["", "", ""]
    assert not caches.ignores_lifetimes("gpt-5.4", "openai")
    assert _note(caches, 900, 0, longer) == "unlengthened"
    assert caches.ignores_lifetimes("gpt-5.4", "openai")
