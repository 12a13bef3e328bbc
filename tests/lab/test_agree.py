"""`narrows agree`: a planted loss is found and a harmless preset passes, whatever the noise; the budget holds."""

import asyncio
import json
import re
from collections import Counter as Counts
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.agreement import Action, action_in, says_same
from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from proxy.console.cli import command_line
from proxy.lab.agree.asking import DISTANCES, ComparedTurn, Turn, WithNarrows, sample_of
from proxy.lab.agree.command import AgreePlan
from proxy.lab.agree.report import AgreeReport, agreement, agreement_page, preset_agreement
from proxy.lab.provider import Provider, Received, Say, start
from proxy.lab.replay.recorded import Session, session_of
from tests.kit.drawn import checked

Json = dict[str, Any]
MODEL = "gpt-5.4"
TURNS = 22


def call(name: str, **arguments: str) -> Json:
    return {"id": f"c{arguments}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def session(seed: int) -> bytes:
    """An agent that reads a plan first, and then file after file; each file names the next one, too."""
    random = Random(seed)
    names = [f"src/part_{random.randrange(10**6)}.py" for _ in range(TURNS)]
    plan = "\n".join(f"step {at}: read {name}, then think about what it does there" for at, name in enumerate(names))
    filler = "\n".join(f"note {at}: value_{random.randrange(10**6)} is used by nobody" for at in range(150))
    messages: list[Json] = [{"role": "user", "content": "Follow the plan."}]
    outputs = [plan + "\n" + filler]
    for at in range(len(names) - 1):
        text = "\n".join(f"    value_{random.randrange(10**6)} = parse_{at}({n})" for n in range(120))
        outputs.append(f"{text}\nnext to read: {names[at + 1]}")
    targets = ["PLAN.md", *names]
    for at, output in enumerate(outputs):
        made = {**call("read_file", path=targets[at]), "id": f"call_{at}"}
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": f"call_{at}", "content": output})
    messages.append({"role": "assistant", "content": "It is done."})
    return json.dumps({"model": MODEL, "messages": messages}).encode()


def text_of(received: Received) -> str:
    return json.dumps(received.json["messages"])


def step_of(received: Received) -> int:
    """Which file is read next: how many answers there are, recalls apart."""
    answers = [message for message in received.json["messages"] if message["role"] == "assistant"]
    return sum("narrows_recall" not in json.dumps(message) for message in answers) - 1


def by_plan(received: Received) -> Say:
    """Reads what the plan says; where it cannot see that, it looks around."""
    found = re.search(rf"step {step_of(received)}: read (\S+),", text_of(received))
    return Say(calls=[call("read_file", path=found[1]) if found else call("bash", command="ls")])


def by_newest(received: Received) -> Say:
    """Reads what the newest output names."""
    found = re.findall(r"next to read: (\S+?)[\"\\]", text_of(received))
    return Say(calls=[call("read_file", path=found[-1]) if found else call("read_file", path="first.py")])


def by_recall(received: Received) -> Say:
    """Recalls what it cannot see."""
    answer = by_plan(received)
    ref = re.search(r"PLAN.*?ref (\d{6,})", text_of(received), re.S)
    sees = answer.calls[0]["function"]["name"] == "read_file"
    return answer if sees or ref is None else Say(calls=[call("narrows_recall", ref=ref[1])])


def noisy(share: float) -> Callable[[Received], Say]:
    """By the newest output, but for a share of answers; the same whatever order the requests come in."""
    times: Counts[str] = Counts()

    def answer(received: Received) -> Say:
        place = f"{by_newest(received).calls} {' ref ' in text_of(received)}"
        times[place] += 1
        is_other = Random(f"{place} {times[place]}").random() < share
        return Say(calls=[call("bash", command="ls")]) if is_other else by_newest(received)

    return answer


@asynccontextmanager
async def model(answer: Callable[[Received], Say]) -> AsyncIterator[tuple[str, Provider]]:
    provider = Provider(prices_for, Counter(), answer=answer, keep=1_000)
    async with await start(provider) as running:
        yield running.url, provider


def recorded(number: int) -> list[Session]:
    return [session_of(session(seed), f"s{seed}", f"s{seed}") for seed in range(1, number + 1)]


def plan_for(upstream: str, **chosen: Any) -> AgreePlan:
    options: dict[str, Any] = {
        **{
            "sessions": recorded(2),
            "presets": ["structural"],
            "own": {},
            "upstream": upstream,
            "model": MODEL,
            "samples": 24,
        },
        **{"seed": 1, "budget": 100.0, "most_requests": None, "concurrency": 2, "key": "sk-real"},
    }
    return AgreePlan(**{**options, **chosen})


async def compared(answer: Callable[[Received], Say], **chosen: Any) -> tuple[AgreeReport, list[Received]]:
    async with model(answer) as (url, provider):
        forecast = await plan_for(url, **chosen).forecast(lambda: None)
        report = await forecast.ask(asyncio.Event(), lambda: None)
        return report, list(provider.requests)


async def test_a_preset_that_hides_what_the_next_turn_needs_is_found() -> None:
    report, asked = await compared(by_plan, samples=12, sessions=recorded(1))
    (row,) = report.presets
    assert (row.verdict, row.action.noise, row.tools.with_) == ("loss", 1.0, 0.0), row
    assert row.examples[0].with_ == "bash ls"
    assert {received.credential for received in asked} == {"sk-real"}
    assert report.requests == len(asked) == 36
    assert report.dollars == pytest.approx(sum(prices_for(MODEL).cost(r.usage).total for r in asked if r.usage))
    assert "A loss: with structural" in checked(agreement_page(report)).text


async def test_a_preset_that_hides_nothing_of_use_passes_and_few_samples_do_not_say_so() -> None:
    report, _ = await compared(by_newest, samples=60, sessions=recorded(3))
    (row,) = report.presets
    assert (row.verdict, row.action.difference, row.examples) == ("no loss seen", 0.0, []), row
    does = Action((), "It is done.")
    few = [ComparedTurn(0, at, (does, does), [WithNarrows(does, DISTANCES[0], 0, True)]) for at in range(12)]
    row = preset_agreement("structural", 0, few, ["s1"])
    assert (row.verdict, row.action.difference) == ("undecided", 0)
    assert "Not decided" in row.words
    assert preset_agreement("structural", 0, few[:9], ["s1"]).words.startswith("Nothing can be said")


async def test_recalls_are_answered_before_an_action_counts() -> None:
    report, asked = await compared(by_recall, samples=12, sessions=recorded(1))
    (row,) = report.presets
    assert row.action.difference == 0, row
    assert row.recalls == row.recalled == len(asked) - 36 > 0
    assert report.requests == len(asked)


async def test_a_model_that_disagrees_with_itself_is_no_loss() -> None:
    report, _ = await compared(noisy(0.3), samples=40)
    action = report.presets[0].action
    assert 0.3 < action.noise < 0.9, action
    assert action.low < 0 < action.high, action


async def test_nothing_is_asked_beyond_the_budget() -> None:
    async with model(by_newest) as (url, provider):
        planned = await plan_for(url, budget=0.2, samples=40).forecast(lambda: None)
        assert 0 < len(planned.sample) < planned.wanted == 40
        assert "it stops before $0.20" in planned.cost
        # a sample that would cost more all the same
        more = replace(planned, sample=(await plan_for(url).forecast(lambda: None)).sample)
        report = await more.ask(asyncio.Event(), lambda: None)
        spent = sum(prices_for(MODEL).cost(received.usage).total for received in provider.requests if received.usage)
        assert report.dollars == pytest.approx(spent)
        assert 0 < spent <= 0.2
        assert 0 < report.samples < 24
        assert "before the budget was passed" in report.stopped
        counted = await replace(more, plan=plan_for(url, most_requests=7)).ask(asyncio.Event(), lambda: None)
        assert (counted.requests, counted.samples) == (7, 2)


async def test_who_stops_it_gets_the_samples_that_are_there() -> None:
    stop = asyncio.Event()
    done = []

    def advance() -> None:
        done.append(True)
        if len(done) == 4:
            stop.set()

    async with model(by_newest) as (url, _):
        report = await (await plan_for(url).forecast(lambda: None)).ask(stop, advance)
    assert 4 <= report.samples < 24
    assert report.stopped.startswith("It was stopped")


def test_samples_follow_from_the_seed_and_have_their_share_of_sessions_and_distances() -> None:
    turns = [
        Turn(at, number, 9, 9, number % 5 != 0, DISTANCES[number % len(DISTANCES)] if at else DISTANCES[0])
        for at, requests in enumerate((400, 200, 100))
        for number in range(requests)
    ]
    drawn = sample_of([turns], 112, 3)
    assert drawn == sample_of([turns], 112, 3) != sample_of([turns], 112, 4)
    assert len(set(drawn)) == 112
    assert all(turn.is_shortened for turn in drawn)
    sizes = [sum(turn.session == at for turn in drawn) for at in range(3)]
    assert all(abs(size - share) <= 1 for size, share in zip(sizes, (64, 32, 16), strict=True)), sizes
    assert len({turn.distance for turn in drawn if turn.session == 2}) == 4
    assert len(sample_of([turns], 10_000, 3)) == 560


def test_an_interval_holds_the_true_difference_in_nineteen_of_twenty_comparisons() -> None:
    random, hits, runs = Random(5), 0, 400
    for _ in range(runs):
        pairs, sessions = [], []
        for at in range(8):
            likely = random.uniform(0.6, 1.0)  # how sure the model is in this session
            for _ in range(15):
                without = [random.random() < likely for _ in range(2)]
                with_ = random.random() < likely and random.random() < 0.9
                pairs.append((float(without[0] == without[1]), sum(each == with_ for each in without) / 2))
                sessions.append(at)
        figures = agreement(pairs, sessions)
        # p p + q q with p' = 0.9 p: the mean of 2p - 1 times 0.9 p - p, over p from 0.6 to 1
        true = sum((2 * p - 1) * -0.1 * p for p in (0.6 + 0.4 * (n + 0.5) / 1000 for n in range(1000))) / 1000
        hits += figures.low <= true <= figures.high
    assert 0.92 * runs <= hits <= 0.995 * runs, hits
    assert -0.05 < agreement([(1.0, 1.0)] * 200, [0] * 200).low < 0


REPLIES: dict[str, Callable[[str, str], Json]] = {
    "openai_chat": lambda name, text: {
        "choices": [
            {
                "finish_reason": "tool_calls",
                "message": {"role": "assistant", "content": "so", "tool_calls": [called(name, text)]},
            }
        ]
    },
    "openai_responses": lambda name, text: {
        "status": "completed",
        "output": [{"type": "function_call", "call_id": "c", "name": name, "arguments": text}],
    },
    "anthropic_messages": lambda name, text: {
        "stop_reason": "tool_use",
        "content": [{"type": "tool_use", "id": "c", "name": name, "input": json.loads(text)}],
    },
}


def called(name: str, text: str) -> Json:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": text}}


@pytest.mark.parametrize("dialect", REPLIES)
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("read_file", {"path": "./src/a.py", "start_line": 1}), ("read_file", {"path": "src/a.py"}), True),
        (("read_file", {"path": "src/a.py"}), ("read_file", {"path": "src/b.py"}), False),
        (("read_file", {"path": "src/a.py"}), ("view", {"path": "src/a.py"}), False),
        (("bash", {"command": "pytest  -q"}), ("bash", {"command": "pytest -q", "timeout": 5}), True),
        (("bash", {"command": "pytest -q"}), ("bash", {"command": "pytest -x"}), False),
        (("grep", {"pattern": "def x", "path": "src"}), ("grep", {"pattern": "def y", "path": "src"}), False),
        (
            ("edit", {"path": "a.py", "old_string": "a", "new_string": "b"}),
            ("edit", {"path": "a.py", "old_string": "a", "new_string": "c"}),
            True,
        ),
        (("e", {"path": "a.py", "command": "create"}), ("e", {"path": "a.py", "command": "str_replace"}), False),
        (("ask", {"b": 1, "a": 2}), ("ask", {"a": 2, "b": 1}), True),
        (("ask", {"b": 1}), ("ask", {"b": 2}), False),
    ],
)
def test_actions_are_compared_by_tool_target_and_kind_of_change(dialect: str, one: Any, other: Any, same: bool) -> None:
    actions = [
        action_in(dialect, json.dumps(REPLIES[dialect](name, json.dumps(arguments))).encode())
        for name, arguments in (one, other)
    ]
    first, second = actions
    assert first is not None
    assert second is not None
    assert first.does_same(second) is same, actions
    assert not first.does_same(Action((), "It is done."))
    assert action_in(dialect, b'{"error": 1}') is None


def test_prose_counts_as_the_same_only_where_names_and_words_agree() -> None:
    done = "I changed parse_line in src/parser.py; all 12 tests are green now."
    assert says_same(done, "All 12 tests are green now: parse_line in src/parser.py was changed.")
    assert not says_same(done, "I changed parse_file in src/reader.py; all 12 tests are green now.")
    assert not says_same(done, f"{done} Shall I go on?")


def test_what_it_costs_is_said_and_agreed_to_before_anything_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_bytes(session(1))

    def run(*words: str) -> Any:
        chosen = [str(file), "--upstream", "http://127.0.0.1:9/v1", "--preset", "structural", "--samples", "9"]
        return CliRunner().invoke(command_line("agree"), ["agree", *chosen, *words])

    result = run("--model", MODEL)
    assert result.exit_code == 2
    assert "27 requests to gpt-5.4 at 9 of" in result.stderr
    assert "add --yes" in result.stderr
    assert "--max-requests N" in run("--model", "nobodys-model").stderr
    assert "with --model" in run().stderr
    failed = run("--model", MODEL, "--yes", "--json")
    report = json.loads(failed.stdout)
    assert (failed.exit_code, report["samples"], report["left_out"]) == (2, 0, 5)
    assert "given up" in report["stopped"]
    assert "cannot be asked" in report["first_failure"]
