"""Replays in which the model recalls what it uses and cannot see: the bill holds every round, and the prefix stays."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from policies.model.conversation import Part
from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from policies.text.stubs import refs_named
from policies.tools import RECALL
from proxy.console import cli
from proxy.console.output import as_json
from proxy.kernel.follow_up import FollowUp
from proxy.lab.demo import recorded
from proxy.lab.provider import Provider, Received, Say, start
from proxy.lab.quality import needed
from proxy.lab.replay.bills import SessionBill, joined
from proxy.lab.replay.environment import Options, ReplayEnvironment, environment_for
from proxy.lab.replay.recorded import Json, Session
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import ClientReply, post, replay, replay_all
from proxy.requests import UpstreamRequest

STEPS = 6
QUOTED = ((0, 40), (1, 41), (0, 50))
"""Which outputs the last turns quote, at which line: the third is in sight where the first was recalled."""
MODEL = "gpt-5.4"


def line(step: int, number: int) -> str:
    return f"check_{step} case_{number} took {step * 1000 + number + 100_000} ticks"


def output(step: int) -> str:
    return "\n".join(line(step, number) for number in range(300))


def called(name: str, arguments: Json, call_id: str, gives: str) -> list[Json]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": gives},
    ]


def working(quotes: Sequence[Sequence[tuple[int, int]]]) -> Session:
    """Commands with long outputs, then edits that each quote lines of these; the newest output is still whole then."""
    messages: list[Json] = [{"role": "system", "content": "You mend."}, {"role": "user", "content": "Mend it."}]
    for step in range(STEPS + 1):
        messages += called("bash", {"command": f"make step{step}"}, f"run_{step}", output(step))
    for at, lines in enumerate(quotes):
        old = "\n".join(line(*place) for place in lines)
        messages += called("edit", {"path": "notes", "old_string": old, "new_string": "x"}, f"edit_{at}", "done")
    messages.append({"role": "assistant", "content": "Mended."})
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS]
    return Session("working", MODEL, tuple(messages), tuple(tools))


TOOLS = ("bash", "edit")
SESSION = working([[place] for place in QUOTED])
_ONCE: dict[float, tuple[Report, list[Received]]] = {}


def at(rate: float) -> Options:
    return Options(refetch=rate)


async def played(session: Session, stage: ReplayEnvironment) -> tuple[Report, list[Received]]:
    """The report, and every request as the provider got it."""
    received: list[Received] = []
    async with aiohttp.ClientSession() as http:

        async def ask(body: Json, headers: Mapping[str, str]) -> ClientReply:
            reply = await post(http, stage.base_url, "run", body, headers)
            received.extend(stage.received("run"))
            return reply

        return await replay(session, "run", stage, ask, lambda: None), received


async def at_rate(rate: float, session: Session) -> tuple[Report, list[Received]]:
    async with environment_for(MODEL, at(rate)) as stage:
        return await played(session, stage)


async def once(rate: float) -> tuple[Report, list[Received]]:
    """The same run of the same session for all tests that only look at it."""
    if rate not in _ONCE:
        _ONCE[rate] = await at_rate(rate, SESSION)
    return _ONCE[rate]


def recall_calls(received: Received) -> list[Json]:
    calls = (call for message in received.json["messages"] for call in message.get("tool_calls") or ())
    return [call for call in calls if call["function"]["name"] == RECALL]


def recalled(received: Received) -> dict[str, str]:
    """What each reference in a request was last answered."""
    refs = {call["id"]: json.loads(call["function"]["arguments"])["ref"] for call in recall_calls(received)}
    messages = received.json["messages"]
    return {refs[m["tool_call_id"]]: m["content"] for m in messages if m.get("tool_call_id") in refs}


async def test_r1_nobody_recalls_at_rate_0_and_every_use_of_hidden_text_is_counted() -> None:
    report, received = await once(0)
    assert len(received) == report.requests == len(SESSION.turns)
    assert (report.recalls.calls, report.recalls.rounds, report.recalls.bill.tokens) == (0, 0, 0)
    assert report.recalls.uses_of_hidden_text == len(QUOTED)
    assert report.used_by_later_turns.quoted.recoverable_by_recall == len(QUOTED)
    used = report.used_by_later_turns.all
    assert (used.lost, used.recoverable_by_running_again, used.behind_a_stub_without_way_back) == (0, 0, 0)
    assert report.faults == 0


async def test_r1_at_rate_1_each_use_is_recalled_byte_for_byte_and_stays_in_sight() -> None:
    report, received = await once(1)
    assert (report.recalls.calls, report.recalls.rounds, report.recalls.refused) == (2, 2, 0)
    assert len(received) == report.requests + 2
    assert sorted(recalled(received[-1]).values()) == [output(0), output(1)]
    assert report.recalls.uses_of_hidden_text == 2
    assert (report.used_by_later_turns.quoted.visible, report.used_by_later_turns.quoted.recoverable_by_recall) == (
        1,
        2,
    )
    assert (report.used_by_later_turns.all.lost, report.faults) == (0, 0)


async def test_s2_rounds_move_no_prefix_undeclared() -> None:
    report, received = await once(1)
    assert report.undeclared_prefix_changes == 0
    assert report.prefix["extended"] > 0
    for before, after in pairwise(received):
        if recalled(after) != recalled(before):
            messages = before.json["messages"]
            assert after.json["messages"][: len(messages)] == messages


async def test_the_bill_counts_every_round_and_that_of_doing_nothing_none() -> None:
    without, _ = await once(0)
    report, received = await once(1)
    bill = SessionBill(prices_for(MODEL))
    rounds = SessionBill(prices_for(MODEL))
    before: Received | None = None
    for request in received:
        assert request.usage is not None
        bill.add(request.usage)
        if before is not None and before.headers["x-replay-turn"] == request.headers["x-replay-turn"]:
            rounds.add(request.usage)
        before = request
    assert report.bill == bill
    assert report.recalls.bill == rounds
    assert report.baseline == without.baseline
    assert report.worst_ratio_at_any_stop >= report.input_bill.ratio > without.input_bill.ratio


async def test_the_share_that_is_recalled_is_the_same_every_time_and_grows_with_the_rate() -> None:
    many = working([[(step, 40)] for step in range(STEPS)])
    found: list[set[str]] = []
    for rate in (0.0, 0.3, 0.3, 0.7, 1.0):
        report, received = await at_rate(rate, many)
        found.append(set(recalled(received[-1])))
        assert report.faults == 0
        assert report.recalls.calls == len(found[-1])
    assert found[0] == set()
    assert found[1] == found[2] <= found[3] <= found[4]
    assert found[1] != found[4]
    assert len(found[4]) == STEPS


async def test_a_turn_recalls_at_most_four_texts_in_one_message_and_is_played_then() -> None:
    report, received = await at_rate(1, working([[(step, 40) for step in range(STEPS)]]))
    assert (report.recalls.uses_of_hidden_text, report.recalls.calls, report.recalls.rounds) == (STEPS, 4, 1)
    assert len(recalled(received[-1])) == 4
    assert report.faults == 0


async def test_what_a_page_did_not_show_is_searched_for_and_found() -> None:
    """A whole text is shown up to a page; its first recall brings the beginning, the next one the line that is used."""
    short = working([[(0, 150)], [(1, 41)], [(0, 50)]])
    long = replace(short, messages=tuple(_longer(message) for message in short.messages))
    report, received = await at_rate(1, long)
    (ref,) = [ref for ref, text in recalled(received[-1]).items() if "case_9000" in text]
    asked = [json.loads(call["function"]["arguments"]) for call in recall_calls(received[-1])]
    assert [said.get("part", "") for said in asked if said["ref"] == ref] == ["", "find case_9000"]
    assert (report.recalls.calls, report.recalls.refused, report.faults) == (3, 0, 0)


def _longer(message: Json) -> Json:
    """The first output with much behind it, and a third quote that stands beyond a page."""
    if message.get("tool_call_id") == "run_0":
        return {**message, "content": f"{output(0)}\n{output(8)}\n{line(9, 9000)}\n{output(9)}"}
    if any(call["id"] == "edit_2" for call in message.get("tool_calls") or ()):
        return called("edit", {"path": "notes", "old_string": "case_9000", "new_string": "x"}, "edit_2", "")[0]
    return message


async def test_s2_a_round_that_changes_what_was_sent_is_undeclared_whatever_its_turn_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with environment_for(MODEL, at(1)) as stage:
        next_round = FollowUp.next_round

        async def meddled(*arguments: Any) -> UpstreamRequest:
            following = await next_round(*arguments)
            return structs.replace(following, body=following.body.replace(b"You mend.", b"You meddle."))

        monkeypatch.setattr(FollowUp, "next_round", meddled)
        report, _ = await played(SESSION, stage)
    assert report.recalls.rounds == 2
    assert report.undeclared_prefix_changes == 4  # into each of the rounds, and out of it


def test_r5_a_recall_that_is_refused_is_a_fault() -> None:
    report = Report("s", "m", SessionBill(prices_for("m")), SessionBill(prices_for("m")))
    report.recalls.add(1, 1, ())
    assert report.faults == 1


async def test_recalls_of_several_sessions_add_up() -> None:
    (alone,) = await replay_all([SESSION], at(1))
    once, twice = as_json(alone)["recalls"], as_json(joined([alone.recalls, alone.recalls]))
    assert set(once) == {"rate", "uses_of_hidden_text", "calls", "refused", "rounds", "tokens", "input_bill"}
    assert once["rate"] == twice["rate"] == 1
    for name in set(once) - {"rate"}:
        assert twice[name] == pytest.approx(2 * once[name], rel=1e-4)
    assert once["uses_of_hidden_text"] == once["calls"] == 2
    assert joined([alone.recalls]) == alone.recalls


async def test_a_real_upstream_is_billed_for_every_round() -> None:
    provider = Provider(prices_for, Counter("o200k_base"))
    parts = [Part("assistant", line(0, 40), ("content",), 1)]
    asked: list[str] = []

    async with await start(provider) as running, environment_for(MODEL, Options(upstream=running.url)) as stage:

        def once(received: Received) -> Say | None:
            planned = stage.observer.newest["run"]
            assert planned is not None
            texts = needed(planned.context.conversation, planned.plan.edits, parts)
            if not texts or asked:
                return None
            asked.append(texts[0].ref)
            function = {"name": RECALL, "arguments": json.dumps({"ref": texts[0].ref})}
            return Say("Let me see.", ({"id": "r", "type": "function", "function": function},))

        provider.answer = once
        async with aiohttp.ClientSession() as http:
            ask = partial(post, http, stage.base_url, "sk")
            report = await replay(SESSION, "run", stage, ask, lambda: None)
    usages = [received.usage for received in provider.requests if received.usage]
    bill = SessionBill(prices_for(MODEL))
    for usage in usages:
        bill.add(usage)
    assert len(usages) == report.requests + 1
    assert report.bill == bill
    assert (report.recalls.calls, report.recalls.rounds) == (1, 1)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--refetch", "1.5"), "--refetch"),
        (("--refetch", "0.5", "--upstream", "http://127.0.0.1:1/v1"), "a real upstream recalls as it wants"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], advice: str
) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["replay", "x.json", *words])
    assert leaving.value.code == 2
    assert advice in capsys.readouterr().err


def test_recalls_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from proxy.console.output import console
    from proxy.lab.replay.display import print_replays
    from proxy.lab.replay.report import averages

    report = Report("s", "gpt-5.4", SessionBill(prices_for("gpt-5.4")), SessionBill(prices_for("gpt-5.4")))
    report.recalls.uses_of_hidden_text = 3
    report.used_by_later_turns.all.add("recoverable_by_recall")
    print_replays(console(), [report], averages([report]))
    shown = capsys.readouterr().out
    assert "used out of sight, with tools: 1 recallable, 0 by running a tool again" in shown
    assert "recalls, rate 0: 0 for 3 uses of hidden text\n" in shown


LONG = recorded("long_day")


async def recalling_thrice(start: int) -> Report:
    """A long session whose model recalls the oldest text that is hidden, at this turn and twice after it. With windows
    that follow the history, one late rewrite would weigh more than the recalls."""
    refs: dict[int, str] = {}
    async with environment_for(MODEL, Options(preset="eager")) as stage, aiohttp.ClientSession() as http:
        assert stage.provider is not None

        def answered(received: Received) -> Say | None:
            turn = int(received.headers.get("x-replay-turn", -1))
            hidden = [ref for ref in refs_named(received.body.decode()) if ref not in refs.values()]
            if not 0 < start <= turn or turn in refs or len(refs) == 3 or not hidden:
                return None
            refs[turn] = hidden[0]
            function = {"name": RECALL, "arguments": json.dumps({"ref": hidden[0]})}
            return Say(calls=[{"id": f"recall_{turn}", "type": "function", "function": function}])

        stage.provider.answer = answered
        return await replay(LONG, "run", stage, partial(post, http, stage.base_url, "run"), lambda: None)


async def test_e3_three_recalls_end_no_saving() -> None:
    without = await recalling_thrice(0)
    for turn in (14, 18, 23):
        check_what_recalls_cost(without, await recalling_thrice(turn))


def check_what_recalls_cost(without: Report, report: Report) -> None:
    assert (without.recalls.rounds, report.recalls.rounds, report.faults) == (0, 3, 0)
    assert report.baseline == without.baseline
    rounds = report.recalls.bill.input / report.baseline.input
    assert rounds > 0.02
    # what was recalled is sent again for a while, and rewrites begin elsewhere; inside the guard it would be 0.25
    assert report.input_bill.ratio <= without.input_bill.ratio + rounds + 0.06
