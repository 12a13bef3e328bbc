"""Replays in which old turns are summed up: every call is on the bill, whatever becomes of its answer."""

import asyncio
import copy
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import aiohttp
import pytest

from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, Part, converse
from policies.model.edits import Fold, Origin
from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from policies.money.ledger import limit_of_chats
from policies.presets import PRESETS
from policies.rules.summarize import Summarize
from policies.text.stubs import summary, words_of_people
from proxy import generation
from proxy.console import cli
from proxy.console.output import as_json, console
from proxy.lab.demo import recorded
from proxy.lab.provider import Answer, Provider, Received, Say, Send, start
from proxy.lab.provider.extractive import extract_summary
from proxy.lab.quality import Visibility, needed, tally
from proxy.lab.replay.bills import SessionBill, SummaryCosts, joined
from proxy.lab.replay.display import against_nothing, print_replays, summaries
from proxy.lab.replay.environment import Options, environment_for
from proxy.lab.replay.recorded import Json, Session
from proxy.lab.replay.report import Report, averages
from proxy.lab.replay.runs import post, replay, replay_all
from proxy.memory import cached as cached_store
from proxy.memory import open_store
from proxy.summaries.jobs import PROMPTS
from tests.kit.pausing import pause_breakers

LONG = recorded("long_day")
MODEL, WRITER = "gpt-4o", "gpt-4o-mini"
"""At whose prices a cached prompt is dear enough for a summary of the session that is shipped."""
CHEAPER = "gpt-5.4-mini"
ROLLING = Options(prices=(MODEL,), preset="rolling")
REFUSED = Say("I'm sorry, but I can't help with that. " * 10)
COUNT = Counter("o200k_base")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, the store answers in time: what the store says decides what is adopted."""
    monkeypatch.setattr(cached_store, "_PATIENCE", 30.0)
    monkeypatch.setattr(generation, "open_store", partial(open_store, patience=30.0))


@dataclass
class Run:
    """A report, and the requests for summaries behind it."""

    report: Report
    asked: list[Received]


def is_summary(received: Received) -> bool:
    return received.method == "POST" and bool(
        received.json["messages"][0]["content"] == PROMPTS["compaction"].filled(800)
    )


async def played(options: Options, answer: Answer | None = None, session: Session = LONG, model: str = MODEL) -> Run:
    """One run of a session; another `answer` to what asks for a summary."""
    asked: list[Received] = []
    async with environment_for(model, options) as stage, aiohttp.ClientSession() as http:
        provider, player = stage.provider, stage.player
        assert provider is not None
        assert player is not None

        def answered(received: Received) -> Answer | None:
            said: Answer | None = player(received)
            if is_summary(received):
                asked.append(received)
                said = answer or said
            return said

        provider.answer = answered
        ask = partial(post, http, stage.base_url, "run")
        return Run(await replay(session, "run", stage, ask, lambda: None), asked)


PLAIN = "rolling-without-summaries"


@pytest.fixture(scope="module", autouse=True)
def plain_preset() -> Iterator[None]:
    """What `rolling` does where no summary ever stands."""
    rolling = PRESETS["rolling"]
    policies = tuple(policy for policy in rolling.policies if not isinstance(policy, Summarize))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, PLAIN, replace(rolling, policies=policies))
        yield


@cache
def once(preset: str = "rolling", model: str = "") -> Run:
    """The same run for all tests that only look at it."""
    return asyncio.run(played(Options(preset=preset, summary_model=model)))


def billed(asked: Sequence[Received], model: str) -> SessionBill:
    bill = SessionBill(prices_for(model))
    for received in asked:
        assert received.usage is not None
        bill.add(received.usage)
    return bill


def test_m7_m9_summaries_are_made_adopted_and_on_the_bill_as_the_provider_counted_them() -> None:
    report, asked = once().report, once().asked
    found = report.summaries
    assert found.accepted == found.adopted == found.calls == len(asked)
    assert 0 < found.calls <= found.bound
    assert (found.rejected, found.failed, report.faults) == (0, 0, 0)
    assert found.bill == billed(asked, WRITER)
    assert report.input_bill.with_ == report.bill.input + found.bill.total
    assert report.tokens_sent.with_ == report.bill.tokens + found.bill.tokens
    assert report.worst_ratio_at_any_stop >= report.input_bill.ratio == report.input_bill.with_ / report.baseline.input


def test_a_summary_costs_less_than_it_saves_and_what_it_hides_can_be_recalled() -> None:
    with_them, without = once().report, once(PLAIN).report
    assert as_json(without.summaries)["calls"] == without.summaries.bound == 0
    assert with_them.baseline == without.baseline
    assert with_them.whole_bill.with_ < without.whole_bill.with_
    assert with_them.bill.peak < without.bill.peak
    assert with_them.used_by_later_turns.all.used == without.used_by_later_turns.all.used
    seen = with_them.used_by_later_turns.all
    assert (seen.visible + seen.recoverable_by_recall, seen.lost) == (
        seen.used,
        0,
    )


def test_s2_an_adopted_summary_is_a_declared_checkpoint_and_moves_no_other_prefix() -> None:
    report = once().report
    assert report.prefix["checkpoint:summary"] == report.summaries.adopted
    assert report.undeclared_prefix_changes == 0


async def test_the_same_replay_gives_the_same_summaries() -> None:
    (again,) = await replay_all([LONG], ROLLING)
    first = once().report
    assert as_json(again) | {"session": ""} == as_json(first) | {"session": ""}


async def test_m9_a_rejected_summary_is_charged_and_never_stands() -> None:
    run = await played(Options(preset="rolling"), REFUSED)
    report, found = run.report, run.report.summaries
    assert dict(found.rejected_because) == {"refusal": found.calls}
    assert (found.accepted, found.adopted, found.failed) == (0, 0, 0)
    assert found.calls == len(run.asked) > 0
    assert found.calls <= found.bound
    assert found.bill == billed(run.asked, WRITER)
    assert report.faults == 0
    assert report.bill == once(PLAIN).report.bill


def chat(turns: int, seed: int) -> Session:
    """A chat without tools, of questions and long answers."""
    chance = random.Random(seed)
    stems, endings = ("river", "stone", "market", "engine", "letter", "garden"), ("s", "ed", "ing", "er", "y", "ish")
    words = [stem + ending for stem in stems for ending in endings]
    said: list[Json] = []
    for number in range(turns):
        said.append({"role": "user", "content": f"Question {number}: {' '.join(chance.choices(words, k=20))}"})
        said.append({"role": "assistant", "content": " ".join(chance.choices(words, k=chance.randint(400, 700)))})
    return Session("chat", "gpt-5.4", tuple(said), ())


@pytest.mark.parametrize(("preset", "calls"), [("rolling", 4), ("chat", 7)])
@pytest.mark.parametrize(("turns", "seed"), [(60, 1), (100, 2)])
async def test_e3_a_summariser_that_answers_badly_is_asked_few_times(
    preset: str, calls: int, turns: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_breakers(monkeypatch, "summarizer", 0.0)  # the planner alone holds back
    run = await played(
        Options(preset=preset, cache="none", summary_model="same"), REFUSED, chat(turns, seed), "gpt-5.4"
    )
    found = run.report.summaries
    assert 0 < found.rejected == found.calls == len(run.asked) <= calls
    assert run.report.faults == 0
    if preset == "rolling":  # its aim is the bill
        assert run.report.input_bill.ratio <= 1.02
        assert run.report.worst_ratio_at_any_stop <= limit_of_chats(prices_for("gpt-5.4"))
    else:  # with the aim of the context each one waits for twice the tokens of the one before, and nothing else
        least = next(each.batch for each in PRESETS["chat"].policies if isinstance(each, Summarize))
        assert found.calls <= 1 + math.log2(1 + run.report.baseline.peak / least)
        assert run.report.input_bill.ratio <= 1.06


async def test_m8_a_summary_that_fails_costs_nothing_and_changes_nothing() -> None:
    run = await played(Options(preset="rolling"), Send(400, b'{"error": {"message": "no"}}'))
    found = run.report.summaries
    assert len(run.asked) > 0
    assert found.failed >= len(run.asked)
    assert (found.accepted, found.calls, found.adopted, found.bill.tokens, found.bill.total) == (0, 0, 0, 0, 0)
    assert run.report.faults == 0
    assert run.report.bill == once(PLAIN).report.bill


def test_another_model_writes_summaries_at_its_own_prices() -> None:
    run = once("rolling", CHEAPER)
    found = run.report.summaries
    assert {received.model for received in run.asked} == {CHEAPER}
    assert found.bill == billed(run.asked, CHEAPER)
    assert found.accepted - 1 <= found.adopted > 0  # the last one may come too late in the session
    itself = once("rolling", "same").report.summaries
    assert itself.bill == billed(once("rolling", "same").asked, MODEL)
    assert found.bill.total / found.calls < itself.bill.total / itself.calls
    assert run.report.baseline == once().report.baseline


async def test_a_real_upstream_is_billed_for_its_summaries() -> None:
    asked: list[Received] = []
    provider = Provider(prices_for, COUNT)
    provider.play("sk", LONG.messages)

    def answered(received: Received) -> Say | None:
        if not is_summary(received):
            return None
        asked.append(received)
        return Say(extract_summary(received.json["messages"][-1]["content"], 560, COUNT))

    provider.answer = answered
    async with await start(provider) as running:
        options = replace(ROLLING, upstream=running.url, credential="sk")
        (report,) = await replay_all([LONG], options)
    assert report.summaries.accepted == report.summaries.adopted > 0
    assert report.summaries.bill == billed(asked, WRITER)


def test_runs_add_their_summaries_up() -> None:
    report = once().report
    both = joined([report, report]).summaries
    for name in ("made", "adopted", "calls", "bound", "tokens_in", "tokens_out"):
        assert as_json(both)[name] == 2 * as_json(report.summaries)[name] > 0
    assert as_json(both)["dollars"] == pytest.approx(2 * as_json(report.summaries)["dollars"], rel=1e-4)
    assert joined([report]).summaries == report.summaries


def test_summaries_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    report = joined([once().report, once().report])
    found = report.summaries
    found.rejected_because["invented"] += 1
    print_replays(console(), [report], averages([report]))
    shown = capsys.readouterr().out
    counts = f"{found.accepted} made, {found.adopted} adopted, 1 rejected (invented 1), 0 failed"
    assert f"summaries by gpt-4o-mini: {counts}\n" in shown
    assert f"their {found.calls} calls (at most {found.bound}): " in shown
    assert f"{report.input_bill.ratio:.3f}" in shown
    bare = once(PLAIN).report
    print_replays(console(), [bare], averages([bare]))
    assert "summaries" not in capsys.readouterr().out


def test_a_summariser_of_whom_nobody_knows_the_prices_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["replay", "x.json", "--preset", "rolling", "--summary-model", "nobody"])
    assert leaving.value.code == 2
    assert "nobody knows the prices of 'nobody'" in capsys.readouterr().err


# --- what the built-in provider's model writes ---


def test_a_scripted_summary_is_made_of_lines_of_the_transcript_and_grows_with_it_up_to_what_was_asked() -> None:
    lengths = []
    for received in once().asked:
        told = received.json["messages"][-1]["content"]
        said = extract_summary(told, 560, COUNT)
        assert said == extract_summary(told, 560, COUNT)
        lines = said.splitlines()
        assert all(line.startswith("[") and line.partition("] ")[2] in told for line in lines)
        assert COUNT(extract_summary(told, 100, COUNT)) < COUNT(said)
        lengths.append(COUNT(said))
    assert all(300 < length <= 700 for length in lengths)


def test_a_scripted_summary_goes_on_from_the_one_before_it() -> None:
    told = (
        "Summary so far\n    [1] assistant: The parser is in src/parse.py.\n\n"
        "Transcript\n[3] assistant\n    `parse_line` calls `next_token`. Then all is well.\n"
        '[3] call bash\n    {"command": "cat src/token.py"}\n[4] result bash\n    ValueError: no token\n'
        "[5] assistant\n    Next is `read_all`."
    )
    assert extract_summary(told, 560, COUNT).splitlines() == [
        "[1] assistant: The parser is in src/parse.py.",
        "[3] `parse_line` calls `next_token`.",
        "[3] src/token.py",
        "[4] ValueError: no token",
        "[5] Next is `read_all`.",
    ]


# --- what is in sight where a summary stands ---


@pytest.mark.parametrize("recall", [True, False])
def test_what_a_summary_says_is_visible_and_the_rest_is_recallable_or_behind_a_stub(recall: bool) -> None:
    conversation = _conversation("Begin.", "I see parse_line and next_token.", "Never touch read_all.", "Go on.")
    run = conversation.blocks[1], conversation.blocks[2]
    ref = conversation.run_ref(1, 2) if recall else ""
    text = "\n".join([summary(2, "Facts:\n- parse_line", ref), words_of_people(["Never touch read_all."])])
    origin = Origin("s", "m", "p", "v", 0.0, run[1].anchor)
    fold = Fold(run[0].anchor, run[1].anchor, text, "summarize", origin)
    said = [Part("assistant", "parse_line, read_all, next_token, unheard_of", ("content",), 1)]
    found = Visibility()
    tally(conversation, [fold], said, found)
    assert (found.all.used, found.all.visible, found.all.lost) == (3, 2, 0)
    assert (found.all.recoverable_by_recall, found.all.behind_a_stub_without_way_back) == ((1, 0) if recall else (0, 1))
    assert [need.items for need in needed(conversation, [fold], said)] == ([("next_token",)] if recall else [])


def _conversation(*texts: str) -> Conversation:
    read = DIALECTS["openai_chat"].read
    roles = ("user", "assistant") * len(texts)
    told = ({"role": role, "content": text} for role, text in zip(roles, texts, strict=False))
    return converse([read(json.dumps(message).encode(), COUNT) for message in told])


def test_the_report_says_when_the_first_summary_came_and_what_all_of_it_saved() -> None:
    report = once().report
    asked, adopted = report.summaries.first_asked, report.summaries.first_adopted
    assert asked is not None
    assert adopted is not None
    assert asked.request < adopted.request <= report.requests
    assert report.each_request[asked.request - 1].tokens_sent.with_ == asked.tokens
    # with the summary the prompt is smaller than the one for which it was asked
    assert adopted.tokens < asked.tokens
    assert report.mean_context.with_ < report.mean_context.without < report.peak_context.without
    lines = " ".join(against_nothing([report]))
    assert f"saved ${report.input_bill.without - report.input_bill.with_:.3f}" in lines
    assert (
        f"asked for at request {asked.request} ({asked.tokens:,} tokens), adopted at request {adopted.request}" in lines
    )
    assert f"{report.summaries.calls} paid, {report.summaries.adopted} used" in lines
    assert f"{report.checkpoints_per_100_requests:g} checkpoints per 100 requests" in lines
    without = copy.copy(report)
    without.summaries = SummaryCosts(SessionBill(report.summaries.bill.prices), batch=1)
    assert [*summaries([without])] == ["no summary was asked for"]
    assert "summar" not in " ".join(against_nothing([without]))  # codespell:ignore summar


async def test_what_rejected_summaries_cost_is_said_apart() -> None:
    report = (await played(ROLLING, REFUSED)).report
    summaries = report.summaries
    assert summaries.rejected == summaries.calls > 0
    assert summaries.rejected_bill.total == pytest.approx(summaries.bill.total)
    assert summaries.first_adopted is None
    assert "never adopted" in " ".join(against_nothing([report]))


def test_where_nothing_is_summed_up_and_the_aim_is_the_bill_nothing_is_said_of_it() -> None:
    assert not list(against_nothing([once(PLAIN).report]))
