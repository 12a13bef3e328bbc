"""What the usage of replies shows of a provider's cache."""

from types import SimpleNamespace
from typing import Any

from policies.model.memory import CacheLife, Sent, StepRecord
from policies.money.prices import Usage
from proxy.kernel.understand import LearnedCaches

EARLIER = StepRecord("a")


def _note(caches: LearnedCaches, pause: float, cached: int, previous: StepRecord = EARLIER) -> str:
    settings = SimpleNamespace(cache=SimpleNamespace(mark=False, least=1_024), prices=SimpleNamespace(breakpoints=0))
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


def test_of_a_longer_lifetime_and_of_what_was_kept_warm_nothing_is_learned() -> None:
    caches, longer = LearnedCaches(), StepRecord("a", life=CacheLife(is_longer=True))
    assert [_note(caches, 900, 4_000, longer) for _ in range(6)] == [""] * 6
    sent = Sent(1, "", 0, "", 1, "", "", "", warmed_at=800.0)
    assert [_note(caches, 900, 4_000, StepRecord("a", sent=sent)) for _ in range(6)] == [""] * 6
    assert caches.lifetime("gpt-5.4", "openai", 600.0) == 600.0
