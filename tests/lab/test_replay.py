"""Replays over real sockets: the bills add up, and whatever goes wrong on the way is counted against us."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from policies.money.prices import Usage
from proxy.console.output import as_json
from proxy.lab import sessions
from proxy.lab.demo import recorded
from proxy.lab.needs import Needs
from proxy.lab.provider import TURN_HEADER, Provider, start
from proxy.lab.replay.bills import SessionBill
from proxy.lab.replay.environment import Options, environment_for
from proxy.lab.replay.recorded import Json, Session, chained, chains, grouped, load, load_all, requests
from proxy.lab.replay.report import Report, averages
from proxy.lab.replay.runs import ClientReply, post, replay, replay_all

SHORT = recorded("write_once")
ANSWER = {"role": "assistant", "content": "hi"}
GPT = Options(prices=("gpt-5.4",))


def saved(folder: Path, name: str, content: object) -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


async def one(session: Session, options: Options = GPT) -> Report:
    (report,) = await replay_all([session], options)
    return report


class Meddler:
    """The plain client of a replay, with something between it and Narrows, or between Narrows and the accounts."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._ask = partial(post, http, url, "run")

    def asked(self, turn: int, body: dict[str, Any]) -> Json:
        return body

    def answered(self, turn: int, reply: ClientReply) -> ClientReply:
        return reply

    async def __call__(self, body: Json, headers: Mapping[str, str]) -> ClientReply:
        turn = int(headers[TURN_HEADER])
        return self.answered(turn, await self._ask(self.asked(turn, dict(body)), headers))


async def meddled(kind: type[Meddler]) -> Report:
    async with environment_for("gpt-5.4", Options(preset="structural")) as stage, aiohttp.ClientSession() as http:
        return await replay(SHORT, "run", stage, kind(http, stage.base_url), lambda: None)


async def test_a_session_is_as_many_requests_as_turns_and_costs_less_than_doing_nothing() -> None:
    progressed: list[None] = []
    (report,) = await replay_all([SHORT], GPT, lambda: progressed.append(None))
    assert report.requests == len(progressed) == len(SHORT.turns) == report.prefix.total()
    assert report.faults == 0
    assert 0 < report.bill.tokens < report.baseline.tokens
    assert report.input_bill.ratio < 1
    assert report.prefix_changes == 0 < report.prefix["extended"]
    assert report.used_by_later_turns.all.used > 0
    assert report.protocol == "tools"


async def test_the_bill_of_doing_nothing_is_that_of_the_provider_asked_directly() -> None:
    count = Counter("o200k_base")
    provider = Provider(prices_for, count)
    provider.play("direct", SHORT.messages)
    direct = SessionBill(prices_for("gpt-5.4"))
    async with await start(provider) as running, aiohttp.ClientSession() as http:
        for turn, body in enumerate(requests(SHORT, "gpt-5.4", marks=False)):
            reply = await post(http, running.url, "direct", body, {TURN_HEADER: str(turn)})
            assert reply.usage is not None
            direct.add(reply.usage)
    assert (await one(SHORT)).baseline == direct


async def test_marks_are_set_where_the_cache_needs_them_and_the_cache_can_be_chosen() -> None:
    marked = await one(SHORT, Options(prices=("claude-sonnet-5",)))
    assert marked.bill.written > 0
    assert marked.faults == 0
    by_prefix = await one(SHORT, Options(prices=("claude-sonnet-5",), cache="prefix"))
    assert by_prefix.bill.written == 0
    assert by_prefix.bill.cached > 0


async def test_s2_a_change_of_the_prefix_that_is_not_declared_is_counted() -> None:
    class Silent(Meddler):
        def answered(self, turn: int, reply: ClientReply) -> ClientReply:
            return replace(reply, headers={"x-narrows-prefix": "extended"})

    report = await meddled(Silent)
    assert report.undeclared_prefix_changes == report.prefix_changes > 0
    assert report.faults == report.undeclared_prefix_changes


async def test_s2_a_tail_cut_that_reaches_behind_the_last_step_is_counted() -> None:
    class Deep(Meddler):
        def asked(self, turn: int, body: dict[str, Any]) -> Json:
            messages = body["messages"]
            messages[0]["content"] += "!" if turn == 5 else ""
            return body

        def answered(self, turn: int, reply: ClientReply) -> ClientReply:
            return replace(reply, headers={"x-narrows-prefix": "tail-cut"})

    report = await meddled(Deep)
    assert report.prefix_changes > report.undeclared_prefix_changes
    assert report.undeclared_prefix_changes == 2  # the request with the change, and the next one without it


async def test_a_history_that_the_client_changed_is_no_excuse_in_a_replay() -> None:
    class Forgetful(Meddler):
        def asked(self, turn: int, body: dict[str, Any]) -> Json:
            body["messages"][0]["content"] += " Be brief." if turn >= 4 else ""
            return body

    report = await meddled(Forgetful)
    assert report.prefix["client-changed"] == 1
    assert report.undeclared_prefix_changes == 1


async def test_v1_a_request_that_the_provider_refuses_is_counted_with_its_reason() -> None:
    class Careless(Meddler):
        def asked(self, turn: int, body: dict[str, Any]) -> Json:
            if turn == 3:
                body["messages"] = [m for m in body["messages"] if m["role"] != "tool"]
            return body

    report = await meddled(Careless)
    assert (report.validity_errors, report.unanswered) == (1, 0)
    assert str(report.first_refusal).startswith("400: ")
    assert report.requests == len(SHORT.turns)


async def test_nothing_is_kept_of_a_run() -> None:
    async with environment_for("gpt-5.4", Options(preset="structural")) as stage, aiohttp.ClientSession() as http:
        await replay(SHORT, "run", stage, Meddler(http, stage.base_url), lambda: None)
        assert stage.provider is not None
        assert stage.player is not None
        assert set(stage.observer.newest) == set(stage.observer.rounds) == set(stage.player.received) == {"run"}
        assert len(stage.provider.requests) == len(stage.received("run")) == 1
        stage.forget("run")
        assert not stage.observer.newest
        assert not stage.observer.rounds
        assert not stage.player.received


async def test_each_session_is_billed_by_its_own_model_unless_others_are_named() -> None:
    cheap = replace(SHORT, name="other", model="gpt-4o")
    assert [(r.session, r.prices) for r in await replay_all([SHORT, cheap], Options())] == [
        ("write_once", "gpt-5.4"),
        ("other", "gpt-4o"),
    ]
    assert Options(prices=("a", "b")).tables([SHORT, cheap]) == {"a": [SHORT, cheap], "b": [SHORT, cheap]}


async def test_a_chain_is_one_conversation() -> None:
    twice = chained([SHORT, replace(SHORT, name="again")])
    assert twice.name == "write_once+again"
    assert sum(message["role"] == "system" for message in twice.messages) == 1
    report = await one(twice)
    assert report.requests == 2 * len(SHORT.turns)
    assert report.faults == 0


def test_a_chain_that_is_not_valid_is_refused() -> None:
    orphan = {"role": "tool", "tool_call_id": "nobody's", "content": "x"}  # stands behind the last request
    with pytest.raises(ValueError, match="cannot be chained"):
        chained([replace(SHORT, messages=(*SHORT.messages, orphan)), SHORT])


async def test_an_open_call_at_the_end_of_a_session_is_left_out_of_a_chain() -> None:
    cut = [i for i, message in enumerate(SHORT.messages) if message.get("tool_calls")][1]
    open_call = replace(SHORT, name="open", messages=SHORT.messages[: cut + 1])
    chain = chained([open_call, SHORT])
    assert len(chain.turns) == len(open_call.turns) - 1 + len(SHORT.turns)
    report = await one(chain)
    assert report.faults == 0
    assert "The last reply of open is left out: its calls have no results." in report.notes


def test_a_chain_is_made_in_every_order_and_of_many_sessions_each_begins_one() -> None:
    three, five = ([replace(SHORT, name=name) for name in names] for names in ("abc", "abcde"))
    assert [chain.name for chain in chains(three)] == ["a+b+c", "a+c+b", "b+a+c", "b+c+a", "c+a+b", "c+b+a"]
    assert [chain.name for chain in chains(five)] == ["a+b+c+d+e", "b+c+d+e+a", "c+d+e+a+b", "d+e+a+b+c", "e+a+b+c+d"]
    assert {chain.group for chain in chains(five)} == {"chain"}


def test_groups_are_given_by_name_and_pattern() -> None:
    sessions = [replace(SHORT, name=name) for name in ("mcp-1", "pi-1", "other")]
    assert [each.group for each in grouped(sessions, ["mcp=mcp-*", "talk=pi-*", "late=*-1"])] == ["mcp", "talk", ""]
    with pytest.raises(ValueError, match="--group mcp is no NAME=GLOB"):
        grouped(sessions, ["mcp"])


async def test_a_real_upstream_gets_its_key_and_no_word_of_the_replay() -> None:
    provider = Provider(prices_for, Counter("o200k_base"))
    async with await start(provider) as running:
        report = await one(SHORT, replace(GPT, upstream=running.url, credential="sk-real"))
    assert report.faults == 0
    assert report.requests == len(provider.requests) == len(SHORT.turns)
    for received in provider.requests:
        assert received.credential == "sk-real"
        assert TURN_HEADER not in received.headers
        assert not any(name.lower().startswith("x-narrows") for name in received.headers)


async def test_an_upstream_that_is_not_there_is_counted_not_raised(free_port: int) -> None:
    report = await one(SHORT, replace(GPT, upstream=f"http://127.0.0.1:{free_port}/v1"))
    assert (report.unanswered, report.validity_errors, report.requests) == (8, 0, 8)
    assert str(report.first_refusal).startswith("502: ")
    assert report.input_bill.ratio == 1


async def test_no_setting_and_no_proxy_of_the_machine_has_a_say(
    monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("NARROWS_MODE", "off")
    monkeypatch.setenv("NARROWS_CONFIG", "/no/such/file")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port}")
    report = await one(SHORT)
    assert report.faults == 0
    assert report.bill.tokens < report.baseline.tokens


def test_money_is_by_what_was_read_written_and_neither() -> None:
    prices = replace(prices_for("claude-sonnet-5"), tiers=((1_000, 2.0),))
    bill = SessionBill(prices)
    bill.add(Usage(1_000, 400, 500, 10))
    assert bill.input == pytest.approx((100 + 400 * 0.1 + 500 * 1.25) * 2 / 1e6)
    assert bill.total - bill.input == pytest.approx(10 * 10 / 1e6)
    before = bill.input
    bill.add(Usage(2_000, 0, 0, 0))
    assert bill.input - before == pytest.approx(2_000 * 2 * 2.0 / 1e6)
    assert (bill.tokens, bill.peak) == (3_000, 2_000)
    before = bill.input
    bill.add(Usage(900, 0, 800, 0, 300))
    assert bill.input - before == pytest.approx((100 + 500 * 1.25 + 300 * 2.0) * 2 / 1e6)


def report_of(requests: int, ratio: float, protocol: str = "tools", model: str = "m") -> Report:
    bill, baseline = SessionBill(prices_for(model)), SessionBill(prices_for(model))
    bill.input, baseline.input = ratio, 1.0
    return Report("s", model, bill, baseline, requests=requests, protocol=protocol)


def test_means_are_by_price_table_and_group() -> None:
    reports = [report_of(59, 0.9), report_of(60, 0.4), report_of(99, 0.6), report_of(60, 1.0, "text")]
    reports.append(report_of(70, 0.5, model="n"))
    reports[1].used_by_later_turns.quoted.add("visible")
    reports[2].used_by_later_turns.quoted.add("recoverable_by_recall")
    reports[1].needs, reports[2].needs = Needs(10, 1, 1, 8, 2), Needs(100, 30, 20, 2, 2)
    found = averages(reports)
    assert [(mean.prices, mean.group, mean.sessions) for mean in found] == [
        ("m", "long", 2),
        ("m", "short", 1),
        ("m", "text", 1),
        ("m", "all", 4),
        ("n", "long", 1),
    ]
    assert [mean.input_bill_ratio for mean in found] == pytest.approx([0.5, 0.9, 1.0, 0.725, 0.5])
    assert found[0].share_visible_quoted == 0.5
    # of actions by session, of edits as one
    assert (found[0].share_out_of_sight, found[0].share_out_of_sight_in_calls) == pytest.approx((0.2, 0.15))
    assert (found[0].share_edits_out_of_sight, found[0].share_connected) == (0.4, None)


def test_the_json_of_a_report_is_complete() -> None:
    found = as_json(report_of(60, 0.5))
    assert found["used_by_later_turns"]["all"] == {
        "used": 0,
        "visible": 0,
        "recoverable_by_recall": 0,
        "recoverable_by_running_again": 0,
        "behind_a_stub_without_way_back": 0,
        "lost": 0,
        "share_visible": 1.0,
    }
    expected = {"session", "prices", "requests", "checkpoints", "tokens_sent", "peak_context", "input_bill"}
    expected |= {"whole_bill", "validity_errors", "undeclared_prefix_changes", "worst_ratio_at_any_stop"}
    assert expected <= set(found)
    assert set(found["input_bill"]) == {"with", "without", "ratio"}
    json.dumps(found)


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ({"messages": 3}, "its `messages` is not a list"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "no message of the assistant"),
        ({"messages": [ANSWER]}, "not valid"),
        (
            {
                "messages": [
                    {"role": "tool", "tool_call_id": "x", "content": "y"},
                    {"role": "assistant", "content": "z"},
                ]
            },
            "not valid",
        ),
    ],
)
def test_what_is_no_session_is_refused_with_what_it_needs(tmp_path: Path, content: object, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        load(saved(tmp_path, "s.json", content))


def test_recorded_usage_is_no_session_and_is_passed_over(tmp_path: Path) -> None:
    session = saved(tmp_path, "s.json", sessions.load("write_once"))
    usage = saved(tmp_path, "s.usage.json", [{"prompt_tokens": 1}])
    assert [found.name for found in load_all([usage, session])] == ["s"]
    with pytest.raises(ValueError, match="no session among the files"):
        load_all([usage])
