"""The laws hold where summaries stand, too: generated histories, and a summariser that writes what it is told."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partialmethod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.compact import Compacted, compact
from policies.context import Aim, Policy, Summarizing
from policies.keep import digest_of
from policies.model.edits import Fold
from policies.model.memory import Memory, StepRecord
from policies.model.parameters import Trigger
from policies.model.summary_record import Criteria, SummaryRecord
from policies.money.prices import NO_LIMITS, Budget, BudgetLimits, Prices
from policies.planning import step as pipeline
from policies.planning.plan import plan
from policies.planning.state import PlanState
from policies.rules.summarize import Summarize
from policies.text import stubs
from proxy.lab.provider import PREFIX, find_violation
from tests import examples
from tests.kit.histories import (
    CHEAP,
    EAGER,
    ROOMY,
    TOOLS,
    Json,
    body_of,
    requests,
    sent_messages,
    sessions,
)
from tests.planning.test_laws import AIMS, BUDGETS, check_law_2, check_law_3, thorough

CRITERIA = Criteria("p", "prompt-1")
FREE = Prices("s", 0, 0)
"""What the summariser costs here."""
WRITTEN = Summarizing(CRITERIA, FREE, 20, 0.0)
ROLLING: tuple[Policy, ...] = (
    *EAGER[:-1],
    Summarize(keep=1, when=(Trigger(),), batch=20, verbatim_tokens=30, generations=2, long_message=10_000),
    EAGER[-1],
)
brief = settings(thorough, max_examples=examples(15))
RULES = ["You must never touch main.py.", "Always answer in French.", "Use tabs only, remember that."]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short histories are summed up, too."""
    monkeypatch.setattr("policies.planning.folding.SMALLEST", 1)


@dataclass
class Server:
    """Serves the requests of a session one after the other, and has summaries written as they are wanted."""

    budget: Budget | None = None
    prices: Prices = CHEAP
    criteria: Criteria = CRITERIA
    memory: Memory = field(default_factory=Memory)
    policies: str | tuple[Policy, ...] = ROLLING
    aim: Aim | None = None
    limits: BudgetLimits = NO_LIMITS
    tools: Sequence[Json] | None = TOOLS
    summarizing: Summarizing = WRITTEN
    keep: tuple[str, ...] = ()

    def serve(self, request: Sequence[Json], now: float = 0.0) -> Compacted:
        done = compact(
            body_of(list(request), self.tools),
            policies=self.policies,
            prices=self.prices,
            aim=self.aim,
            budget=self.budget,
            limits=self.limits,
            recall=True,
            memory=self.memory,
            summarizing=replace(self.summarizing, criteria=self.criteria, now=now),
            keep=self.keep,
        )
        anchor = done.conversation.end_anchor(done.conversation.steps - 1)
        steps = {**self.memory.steps, anchor: done_at(anchor, done)}
        made = tuple(self._made(done, now))
        self.memory = replace(self.memory, steps=steps, summaries=(*self.memory.summaries, *made))
        return done

    def _made(self, done: Compacted, now: float) -> Iterator[SummaryRecord]:
        for want in done.plan.wants:
            number, blocks = len(self.memory.summaries), done.conversation.blocks
            span = range(done.conversation.index[want.first], done.conversation.index[want.last] + 1)
            messages = sorted({blocks[i].message for i in span})
            yield SummaryRecord(
                f"id{number}",
                "c",
                want.first,
                want.last,
                tuple(f"{m}:{done.conversation.messages[m].digest.hex()[:16]}" for m in messages),
                "m",
                f"Summary {number}.",
                100,
                3,
                now,
                self.criteria.policy,
                self.criteria.prompt,
                generation=want.generation,
                previous=want.previous,
            )


def done_at(anchor: str, done: Compacted) -> StepRecord:
    plan = done.plan
    keep = digest_of(done.settings.keep)
    return StepRecord(anchor, plan.new, plan.reason, recall=done.settings.recall, dropped=plan.state.dropped, keep=keep)


def driven(session: list[Json], budget: Budget) -> list[Compacted]:
    server = Server(budget)
    return [server.serve(request) for request in requests(session)]


def said_by_people(messages: Sequence[Json]) -> list[str]:
    texts = [m["content"] for m in messages if m["role"] == "user"]
    return [text if isinstance(text, str) else text[0]["text"] for text in texts]


@brief
@given(sessions(7), BUDGETS, AIMS, st.booleans())
def test_law_2_3_4_5_m5_s1_hold_where_summaries_stand(
    session: list[Json], budget: Budget, aim: Aim, waits: bool
) -> None:
    steps, server = [], Server(budget, aim=aim, summarizing=Summarizing(CRITERIA, FREE, 20, 0.0, waits))
    for request in requests(session):
        before = server.memory
        steps.append(server.serve(request))
        assert find_violation({"model": "m", "messages": request}, PREFIX) is None
        # whoever knows the decisions sends the same
        again = replace(server, memory=replace(before, steps=server.memory.steps)).serve(request)
        assert again.body == steps[-1].body
    check_all(session, steps)


def check_valid(done: Compacted) -> None:
    assert find_violation(json.loads(done.body), PREFIX) is None


def check_words(request: Sequence[Json], done: Compacted) -> None:
    """Whatever people wrote, and all system text, word for word."""
    sent = [str(m["content"]) for m in sent_messages(done) if m["role"] in ("user", "assistant")]
    sent += [text for m in sent_messages(done) if isinstance(m["content"], list) for text in [m["content"][0]["text"]]]
    for text in said_by_people(request):
        assert any(text in there for there in sent)
    for role in ("system", "developer"):
        assert [m for m in request if m["role"] == role] == [m for m in sent_messages(done) if m["role"] == role]


def long_session(turns: int, rules: Sequence[str] = ()) -> list[Json]:
    """Tool calls and prose, with what people lay down in between."""
    messages: list[Json] = [{"role": "system", "content": "S"}, {"role": "user", "content": "Do the work."}]
    for turn in range(turns):
        arguments = json.dumps({"command": f"make step-{turn}"})
        call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        messages.append({"role": "assistant", "content": f"Now step {turn}. " + "words " * 20, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": f"done {turn}\n" * 20})
        if turn % 4 == 1:
            messages.append({"role": "assistant", "content": "What next?"})
            messages.append({"role": "user", "content": rules[turn // 4 % len(rules)] if rules else f"go on {turn}"})
    messages.append({"role": "assistant", "content": "done"})
    return messages


*_BEFORE, LAST = requests(long_session(34))


@lru_cache
def served() -> tuple[tuple[Compacted, ...], Memory]:
    """A long session but for its last request, and what is known after it. The same for all: nothing of it changes."""
    server = Server(ROOMY)
    return tuple(map(server.serve, _BEFORE)), server.memory


def test_m5_rules_survive_twenty_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.money.ledger._earned", lambda *_: 1e9)  # none waits to be earned back
    session = long_session(60, RULES)
    server = Server(ROOMY)
    generations = 0
    for request in requests(session):
        done = server.serve(request)
        generations += done.plan.adopted
        whole = "\n".join(str(m["content"]) for m in sent_messages(done))
        for rule in {m["content"] for m in request if m["role"] == "user"}:
            assert rule in whole
    assert generations >= 20


def test_m5_never_from_the_summary_before_alone_and_after_so_many_from_the_originals() -> None:
    steps, summaries = served()[0], served()[1].summaries
    for done in steps:
        for want in done.plan.wants:
            assert done.conversation.index[want.since] <= done.conversation.index[want.last]
    generations = [made.generation for made in summaries]
    assert generations[:5] == [1, 2, 1, 2, 1]
    assert [bool(made.previous) for made in summaries[:4]] == [False, True, False, True]


def test_law_2_a_summary_is_a_declared_checkpoint() -> None:
    reasons = {done.plan.reason for done in served()[0] if done.plan.adopted}
    assert reasons
    assert reasons <= {"checkpoint:summary", "checkpoint:window"}


@pytest.mark.parametrize(
    ("criteria", "now", "reason"),
    [
        (Criteria("other", "prompt-1"), 0.0, "policy"),
        (Criteria("p", "prompt-2"), 0.0, "prompt"),
        (Criteria("p", "prompt-1", models=("another",)), 0.0, "model"),
        (Criteria("p", "prompt-1", ttl=60), 61.0, "age"),
    ],
)
def test_m2_a_stale_summary_is_not_used_and_that_is_said(criteria: Criteria, now: float, reason: str) -> None:
    done, server = served()[0][-1], Server(ROOMY, memory=served()[1])
    assert done.plan.summary is not None
    text = done.plan.summary.text
    server.criteria = criteria
    after = server.serve(LAST, now)
    assert after.plan.state.use.reason == reason
    assert after.plan.reason == "checkpoint:summary-stale"
    assert after.plan.summary is None
    assert text.encode() not in after.body
    assert "Now step 3." in after.body.decode() or after.plan.edits


def test_m2_a_changed_source_message_leaves_the_summary_unused() -> None:
    assert served()[0][-1].plan.summary is not None
    changed = [{**m, "content": "done 0, or not"} if m["content"] == "done 0\n" * 20 else m for m in LAST]
    assert changed != LAST
    after = Server(ROOMY, memory=served()[1]).serve(changed)
    assert after.plan.state.use.reason == "source"
    assert after.plan.summary is None
    assert not any(isinstance(edit, Fold) and edit.origin for edit in after.plan.edits)


def test_s1_m2_who_replays_a_history_with_a_stale_summary_decides_as_who_has_the_books() -> None:
    server = Server(ROOMY, criteria=replace(CRITERIA, ttl=60))
    plan_state: PlanState | None = None
    dropped = 0
    for step, request in enumerate(requests(long_session(34))):
        known = server.memory
        done = server.serve(request, 0.0 if step < 28 else 61.0)  # from the records
        continued = plan(done.conversation, done.settings, known, plan_state)  # from the plan state
        if continued.adopted or done.plan.adopted:  # the one that was claimed first counts
            continued = plan(done.conversation, done.settings, replace(known, steps=server.memory.steps), plan_state)
        assert continued.edits == done.plan.edits
        assert continued.reason == done.plan.reason
        plan_state = continued.state
        dropped += plan_state.dropped
    assert dropped == 1


def test_m2_an_earlier_summary_still_counts_where_a_later_source_changed() -> None:
    changed = [{**m, "content": "done 30, or not"} if m["content"] == "done 30\n" * 20 else m for m in LAST]
    after = Server(ROOMY, memory=served()[1]).serve(changed)
    assert after.plan.state.use.reason == ""
    assert after.plan.summary is not None
    assert after.plan.summary.origin is not None
    last_covered = after.conversation.blocks[after.conversation.index[after.plan.summary.origin.last]].message
    assert last_covered < next(i for i, m in enumerate(changed) if m["content"] == "done 30, or not")


def test_m2_a_rewind_is_no_change_of_a_source() -> None:
    again = Server(ROOMY, memory=served()[1]).serve(requests(long_session(34))[2])
    assert again.plan.state.use.reason == ""
    assert again.plan.summary is None


def broken(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A fault that breaks a law where summaries stand."""
    if fault == "people's words go":
        monkeypatch.setattr("policies.rules.summarize.words_of_people", lambda said: "")
        monkeypatch.setattr("policies.planning.folding.may_fold", lambda *_: True)
    elif fault == "a call loses its result":
        end = Summarize._end
        monkeypatch.setattr(Summarize, "_end", lambda *given: max(-1, end(*given) - 1))
        monkeypatch.setattr("policies.planning.folding.may_fold", lambda *_: True)
    elif fault == "no way back":
        monkeypatch.setattr("policies.rules.summarize.summary", lambda n, text, *_: stubs.summary(n, text, ""))
    else:
        monkeypatch.setattr(pipeline.Changes, "adopt", partialmethod(_silently, pipeline.Changes.adopt))


def _silently(changes: Any, adopt: Any, reason: str, context: Any) -> None:
    adopt(changes, reason, context)
    changes._state.reason = ""


@pytest.mark.parametrize("fault", ["people's words go", "a call loses its result", "no way back", "nothing is said"])
def test_a_fault_in_summaries_makes_the_checks_fail(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = long_session(24)
    broken(monkeypatch, fault)
    with pytest.raises((AssertionError, ValueError)):
        check_all(session, driven(session, ROOMY))


def test_without_a_fault_the_checks_pass() -> None:
    session = long_session(24)
    steps = driven(session, ROOMY)
    assert any(step.plan.summary for step in steps)
    check_all(session, steps)


def check_all(session: list[Json], steps: list[Compacted]) -> None:
    check_law_2(steps)
    for request, done in zip(requests(session), steps, strict=True):
        check_law_3(done)
        check_valid(done)
        check_words(request, done)
