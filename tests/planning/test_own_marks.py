"""V7: cache marks of ours, from what a client asks for itself, and where in the request they come to stand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies.compact import Compacted, compact
from policies.context import Policy
from policies.dialects import DIALECTS
from policies.money.caches import ANTHROPIC, OPENAI, CacheRule
from policies.money.prices import Prices
from policies.planning.plan import plan
from policies.presets import Preset
from policies.rules.offload import Offload
from tests.kit.forms import FORMS
from tests.kit.histories import TOOLS, Json
from tests.kit.talk import MARK_PRICES, calls, conversation_of, gives, runs, says, setup, system, user

MARK = {"cache_control": {"type": "ephemeral"}}
OUTPUT = "a line of output\n" * 400
CUTS = Offload(over=100, keep=50, keep_files=50, relevant_tokens=0)
START = [system("s" * 8_000), user("go")]


def marks(messages: Sequence[Json], *policies: Policy, rule: CacheRule = ANTHROPIC, **more: Any) -> tuple[int, ...]:
    """The messages that get a mark of ours, where the client marks none."""
    style = {"marks": rule.mark, "cache": rule, "slots": 3, "marks_end": rule.endings > 0, "head": 2_000} | more
    return plan(conversation_of(*messages), setup(*policies, prices=MARK_PRICES, **style)).marks


def test_v7_the_first_request_gets_none_and_the_second_one_at_its_very_end() -> None:
    assert marks(START) == ()
    assert marks([*START, *runs("cat a.py", OUTPUT)]) == (3,)
    assert marks([*START, *runs("ls", OUTPUT), user("go on")], CUTS, only_to_fit=True) == (4,)


def test_v7_the_mark_stands_before_what_will_be_cut_next() -> None:
    read = calls("cat a.py", text="I read.")
    assert marks([*START, read, gives(OUTPUT)], CUTS) == (3,), "files stay until they are old"
    assert marks([*START, calls("ls -R", text="I look."), gives(OUTPUT)], CUTS) == (2,)
    both = [*START, calls("cat a.py", "ls -R"), gives(OUTPUT), gives(OUTPUT, "call_1")]
    assert marks(both, CUTS) == (3,)


def test_the_first_request_is_planned_as_plain_input_where_the_client_sets_no_mark() -> None:
    style = {"marks": ANTHROPIC.mark, "cache": ANTHROPIC, "slots": 3, "head": 2_000}
    for marks_end, write in ((False, 1.0), (True, MARK_PRICES.write)):
        settings = setup(prices=MARK_PRICES, marks_end=marks_end, **style)
        first, second = ([*START], [*START, *runs("cat a.py", OUTPUT)])
        ledger = plan(conversation_of(*first), settings).state.ledger
        assert ledger.paid == ledger.baseline == pytest.approx(ledger.original * write)
        assert ledger.cached_before(len(ledger.sent)) == (len(ledger.sent) if marks_end else 0)
        ledger = plan(conversation_of(*second), settings).state.ledger
        assert ledger.paid == pytest.approx(ledger.baseline)
        assert ledger.cached_before(len(ledger.sent)) == len(ledger.sent)


@pytest.mark.parametrize(("head", "marked"), [(900, ()), (1_100, (3,))])
def test_v7_no_mark_below_the_smallest_prefix_that_is_cached(head: int, marked: tuple[int, ...]) -> None:
    assert marks([system("s"), user("go"), says("yes"), user("on")], head=head) == marked


def test_v7_a_client_that_marks_its_end_and_nothing_to_cut_gets_none() -> None:
    messages = [*START, *runs("ls", OUTPUT), *runs("ls -l", OUTPUT)]
    assert marks(messages, marks_end=True) == ()
    assert marks(messages, CUTS, marks_end=True) == (1, 3), "the first output is cut now"


@pytest.mark.parametrize(("texts", "found"), [(10, False), (30, True)])
def test_v7_an_entry_that_no_mark_reaches_gets_one(texts: int, found: bool) -> None:
    """Anthropic looks back 20 positions from a mark; a long turn is more than that."""
    long_turn = [says("one"), *(user(f"part {n}") for n in range(texts))]
    messages = [*START, says("zero"), user("and"), *long_turn]
    found_marks = marks(messages)
    assert found_marks[-1] == len(messages) - 1
    assert (3 in found_marks) == found


@pytest.mark.parametrize(("joins_runs", "found"), [(True, False), (False, True)])
def test_v7_behind_many_parallel_calls_the_entry_before_gets_a_mark_where_each_of_them_counts(
    joins_runs: bool, found: bool
) -> None:
    """On the Claude API a run of calls is one position, and so is one of results; elsewhere nobody says so."""
    rule = replace(ANTHROPIC, joins_runs=joins_runs)
    many = [calls(*(f"cat {n}.py" for n in range(25))), *(gives("short", f"call_{n}") for n in range(25))]
    assert (3 in marks([*START, says("zero"), user("and"), *many], rule=rule)) == found
    # a tail cut whose only free mark would find nothing behind the calls
    cut = marks([*START, *runs("ls", OUTPUT), *many], CUTS, rule=rule, marks_end=True, slots=1)
    assert cut == ((1,) if found else (3,))


@pytest.mark.parametrize("turns", [10, 40])
def test_v7_a_deep_rewrite_marks_what_it_leaves(turns: int) -> None:
    """OpenAI from GPT-5.6 finds the 21 newest endings of messages by itself, and those further back at marks only."""
    later = [message for n in range(turns) for message in runs(f"cat {n}.py", "x" * 80)]
    old = Offload(over=100, keep=turns, keep_files=turns, relevant_tokens=0)
    prices = Prices("gpt-6-sol", read=1.0, write=1.25, breakpoints=True, window=100_000)
    settings = setup(old, prices=prices, marks=OPENAI.mark, cache=OPENAI, slots=3, head=2_000)
    planned = plan(conversation_of(*START, *runs("cat old.py", OUTPUT * 4), *later), settings)
    assert planned.reason == "checkpoint:paid"
    assert 1 in planned.marks


def body_in(dialect: str, model: str, **more: Any) -> bytes:
    """A request of some length in an API, without any mark."""
    messages = [*START, *(m for n in range(6) for m in [*runs(f"cat {n}.py", OUTPUT), user("go on")])]
    form = FORMS[dialect]({"model": model, "messages": messages, "tools": list(TOOLS)})
    return json.dumps(
        {**form, "max_tokens": 100, **more} if dialect != "openai_responses" else {**form, **more}
    ).encode()


def sent(dialect: str, model: str, own_marks: Any = "auto", **more: Any) -> Compacted:
    return compact(body_in(dialect, model, **more), dialect=dialect, policies=Preset((CUTS,)), own_marks=own_marks)


@pytest.mark.parametrize(
    ("dialect", "model", "style"),
    [
        ("openai_chat", "claude-opus-5-5", "cache_control"),
        ("anthropic_messages", "claude-opus-5-5", "cache_control"),
        ("openai_responses", "claude-opus-5-5", ""),
        ("openai_chat", "gpt-6-sol", "prompt_cache_breakpoint"),
        ("openai_responses", "gpt-6-sol", "prompt_cache_breakpoint"),
        ("openai_chat", "gpt-5.4", ""),
    ],
)
def test_v7_which_marks_a_request_may_have_follows_from_its_api_and_model(dialect: str, model: str, style: str) -> None:
    found = sent(dialect, model)
    assert found.settings.marks == style
    assert (f'"{style}"'.encode() in found.body) == bool(style)
    for choice in ("beside", "never"):
        other = sent(dialect, model, choice)
        assert (other.settings.marks, b'"cache_control"' in other.body) == ("", False)


def test_with_marks_of_ours_the_request_is_planned_with_the_caches_prices() -> None:
    ours, plain = sent("anthropic_messages", "claude-opus-5-5"), sent("anthropic_messages", "claude-opus-5-5", "beside")
    assert (ours.settings.prices.read, ours.settings.prices.breakpoints) == (0.05, True)
    assert (plain.settings.prices.read, plain.settings.prices.breakpoints) == (1.0, False)


def test_a_client_that_wants_nothing_cached_gets_no_mark() -> None:
    explicit = sent("openai_responses", "gpt-6-sol", prompt_cache_options={"mode": "explicit"})
    assert (explicit.settings.marks, explicit.settings.prices.read) == ("", 1.0)


def test_v7_a_client_that_marks_its_system_text_alone_is_helped_too() -> None:
    lead = [{"type": "text", "text": "s" * 8_000, **MARK}]
    found = sent("anthropic_messages", "claude-opus-5-5", system=lead)
    assert not found.settings.marks_end
    assert json.loads(found.body)["system"] == lead
    assert b"cache_control" in json.dumps(json.loads(found.body)["messages"][-1]).encode()


def test_v7_four_marks_of_the_clients_leave_no_room_for_ours() -> None:
    lead = [{"type": "text", "text": "s" * 2_000, **MARK} for _ in range(4)]
    found = sent("anthropic_messages", "claude-opus-5-5", system=lead)
    assert (found.settings.marks, found.settings.slots) == ("", 0)
    assert found.body.count(b"cache_control") == 4


@pytest.mark.parametrize(("automatic", "own"), [(False, False), (True, True)])
def test_a_mark_that_the_provider_is_asked_to_set_is_at_the_end(automatic: bool, own: bool) -> None:
    body = body_in("anthropic_messages", "claude-opus-5-5", **(MARK if automatic else {}))
    api = DIALECTS["anthropic_messages"]
    request = api.split(body)
    assert request is not None
    assert api.marks.at_end(request, []) == own
