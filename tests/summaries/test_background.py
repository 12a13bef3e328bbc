"""Background writers: in which order they have their turn with a request, and who makes it wait."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from policies.model.memory import Memory, ModelDigest
from proxy.summaries.background import BackgroundWriters, OutputDigests

PLAN: Any = "plan"
NOTHING: Any = ()


@dataclass
class Writer:
    """Notes its turns in a list that all share."""

    name: str
    turns: list[str]
    waits: bool = False
    word: str = ""
    planned: list[Any] = field(default_factory=list)

    async def before_plan(self, context: Any, plan_state: Any, memory: Any) -> tuple[Any, Any]:
        self.turns.append(f"{self.name} before")
        return (*context, self.name), memory

    def after_plan(self, planned: Any) -> None:
        self.turns.append(f"{self.name} starts")
        self.planned.append(planned)

    async def wait(self, planned: Any, waiting: Any) -> Memory | None:
        self.turns.append(f"{self.name} waits")
        return Memory() if self.waits else None

    def report(self, planned: Any) -> str:
        self.turns.append(f"{self.name} reports")
        return self.word


def writers_of(*writers: Writer) -> BackgroundWriters:
    services: Any = SimpleNamespace()
    return BackgroundWriters(services, writers)


async def replan(planned: Any, memory: Memory) -> Any:
    return f"{planned} again"


async def test_of_two_waits_one_is_made_and_what_follows_sees_the_new_plan() -> None:
    turns: list[str] = []
    one, two = Writer("one", turns, waits=True), Writer("two", turns, waits=True)
    planned: Any = await writers_of(one, two).after_plan(PLAN, replan)
    assert turns == ["one starts", "one waits", "two starts"]
    assert (planned, one.planned, two.planned) == ("plan again", ["plan"], ["plan again"])


async def test_a_writer_that_has_nothing_to_wait_for_leaves_the_wait_to_the_next() -> None:
    turns: list[str] = []
    one, two = Writer("one", turns), Writer("two", turns, waits=True)
    planned: Any = await writers_of(one, two).after_plan(PLAN, replan)
    assert turns == ["one starts", "one waits", "two starts", "two waits"]
    assert (planned, two.planned) == ("plan again", ["plan"])


async def test_each_adds_to_the_request_and_the_last_with_a_word_has_it_in_the_reply() -> None:
    turns: list[str] = []
    one, two = Writer("one", turns, word="adopted"), Writer("two", turns, word="pending")
    context: Any
    context, _ = await writers_of(one, two).before_plan(NOTHING, None, Memory())
    assert [*context] == ["one", "two"]
    assert writers_of(one, two).report(PLAN) == "pending"
    two.word = ""
    assert writers_of(one, two).report(PLAN) == "adopted"
    assert turns[2:4] == ["two reports", "one reports"]


async def test_m10_a_digest_from_the_store_is_still_there_after_a_wait_for_another() -> None:
    async def wait(*_: Any) -> bool:
        return True

    services: Any = SimpleNamespace(maker=None, clock=lambda: 0.0, wait=wait)
    context = SimpleNamespace(
        plan_settings=SimpleNamespace(digesting=object()),
        preset=SimpleNamespace(digests=1_000, exceptions=SimpleNamespace(first_sight=False)),
        conversation=SimpleNamespace(ends=[0]),
        client_request=SimpleNamespace(sender=SimpleNamespace(owner="")),
    )
    stored = {"1f": ModelDigest("What matters.")}
    planned: Any = SimpleNamespace(context=context, plan_state=None, memory=Memory(digests=stored))
    after = await OutputDigests(services).wait(planned, None)
    assert after is not None
    assert dict(after.digests) == stored
