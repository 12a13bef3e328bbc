"""The tables of measured results: honest without sockets, remembered by revision, and in their places."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.presets import PRESETS
from proxy.console.output import as_json
from proxy.lab import sessions
from proxy.lab.demo import recorded
from proxy.lab.generators.loops import generated
from proxy.lab.needs import Needs
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, chained, session_of
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all
from tests.kit.paths import ROOT
from tests.long.figures import __main__ as command
from tests.long.figures import curve, runs, tables
from tests.long.figures.kinds import KINDS, kind_of
from tests.long.figures.runs import Job, Run, runs_of
from tests.long.figures.simulated import simulated
from tests.long.figures.windows import FILE, MARKS

SHORT, LONG = recorded("write_once"), recorded("long_day")
LOOP = session_of(json.dumps(generated("claude-loop", 5, 12)).encode(), "loop", "loop")


def figures(report: Report) -> dict[str, Any]:
    """All that the tables show, and what it is made of."""
    names = ("requests", "input_bill", "whole_bill", "worst_ratio_at_any_stop", "worst_ratio_past_request_20")
    values = {
        name: as_json(getattr(report, name))
        for name in (*names, "prefix_changes", "used_by_later_turns", "needs", "marks_alone")
    }
    return values | {"bill": as_json(report.bill), "baseline": as_json(report.baseline), "sent": report.tokens_sent}


HALVES = list(PRESETS)[::2], list(PRESETS)[1::2]


@pytest.mark.parametrize(
    ("session", "prices", "presets"),
    [(SHORT, "gpt-5.4", [*PRESETS]), (LOOP, "gpt-6-sol", HALVES[0]), (LOOP, "claude-opus-5-5", HALVES[1])],
)
async def test_every_preset_has_the_figures_of_a_real_replay(
    session: Session, prices: str, presets: Sequence[str]
) -> None:
    reports = simulated(session, presets, prices)
    assert len(reports) > len(presets) / 3
    for preset, report in reports.items():
        (real,) = await replay_all([session], Options(prices=(prices,), preset=preset))
        assert figures(report) == figures(real), preset


@pytest.mark.parametrize("prices", ["gpt-5.4", "claude-opus-5-5"])
async def test_a_long_session_has_the_figures_of_a_real_replay(prices: str) -> None:
    (real,) = await replay_all([LONG], Options(prices=(prices,)))
    assert figures(simulated(LONG, ["coding-agent"], prices)["coding-agent"]) == figures(real)
    assert real.faults == 0


def test_a_preset_that_asks_a_model_is_left_to_a_real_replay() -> None:
    assert simulated(LOOP, ["tool-digest", "coding-agent"], "gpt-5.4").keys() == {"coding-agent"}
    asked, plain = runs.run_job(Job(LOOP, "gpt-5.4", ("tool-digest", "coding-agent")))
    assert asked.calls > 0 == plain.calls


# --- kinds ---


def talk(*messages: dict[str, Any], name: str = "any") -> Session:
    """A session of these messages."""
    return Session(name, "gpt-5.4", messages, ())


def turns(count: int, tool: str, arguments: str = "{}", people: int = 1, result: str = "done") -> Session:
    """A session in which a tool is called with each request, and people say so many different things."""
    messages: list[dict[str, Any]] = []
    for at in range(count):
        if at < people:
            messages.append({"role": "user", "content": f"{at}: the next wish"})
        call = {"id": f"call_{at}", "type": "function", "function": {"name": tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{at}", "content": result})
    return talk(*messages)


def says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


@pytest.mark.parametrize(
    ("session", "kind"),
    [
        (turns(60, "bash"), "long"),
        (turns(59, "bash"), "short"),
        (turns(30, "bash", people=10), "interactive"),
        (turns(30, "bash", people=9), "short"),
        (turns(80, "mcp__files__read"), "mcp"),
        (turns(20, "execute", '{"server_name": "a", "tool_name": "b"}'), "mcp"),
        (turns(20, "route", result="meta=None content=[TextContent(type='text', text='a')]"), "mcp"),
        (talk(says("user", "hi"), says("assistant", "hello")), "chat"),
        (talk(says("user", "hi"), says("assistant", "```bash\nls\n```")), "text"),
        (chained([SHORT, SHORT]), "chain"),
    ],
)
def test_a_kind_follows_from_the_shape(session: Session, kind: str) -> None:
    assert kind_of(session) == kind
    assert kind in KINDS
    assert kind_of(replace(session, name="mini-mcp-chat-pi")) == kind


def test_a_group_by_name_counts_more_than_the_shape() -> None:
    (session,) = command.with_kinds([turns(60, "bash")], ["mcp=a*"])
    assert session.group == "mcp"


def test_the_chain_is_of_those_named_by_their_ends_or_of_the_three_longest() -> None:
    several = command.with_kinds([replace(turns(60 + at, "bash"), name=f"name-{at}") for at in range(4)], [])
    assert [each.name for each in command.in_chain(several, [])] == ["name-3", "name-2", "name-1"]
    assert [each.name for each in command.in_chain(several, ["-0", "e-2"])] == ["name-0", "name-2"]
    assert command.in_chain(several[:2], []) == []
    with pytest.raises(ValueError, match="0 of the sessions"):
        command.in_chain(several, ["other"])


# --- runs ---

JOB = Job(SHORT, "gpt-5.4", ("coding-agent",))


def test_what_is_remembered_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progressed: list[tuple[int, int]] = []
    first = runs_of([JOB], tmp_path, 1, lambda done, total, _: progressed.append((done, total)))
    assert progressed == [(1, 1)]
    monkeypatch.setattr(runs, "run_job", None)
    assert list(runs_of([JOB], tmp_path, 1)) == first
    assert first[0].bill < 1
    assert first[0].faults == 0


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one run is remembered."""
    folder = tmp_path_factory.mktemp("runs")
    runs_of([JOB], folder, 1)
    return folder


@pytest.mark.parametrize("change", ["session", "prices", "preset", "code", "cut short"])
def test_what_a_run_follows_from_makes_it_another(
    change: str, remembered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(remembered, tmp_path, dirs_exist_ok=True)
    others = {
        "session": Job(replace(SHORT, messages=SHORT.messages[:-2]), "gpt-5.4", ("coding-agent",)),
        "prices": Job(SHORT, "gpt-4o", ("coding-agent",)),
        "preset": Job(SHORT, "gpt-5.4", ("gentle",)),
    }
    if change == "code":
        monkeypatch.setattr(runs, "revision", lambda: "another")
    if change == "cut short":
        next(tmp_path.rglob("*.json")).write_text('{"session": ')
    progressed: list[str] = []
    runs_of([others.get(change, JOB)], tmp_path, 1, lambda _, __, name: progressed.append(name))
    assert len(progressed) == 1


def test_the_revision_follows_from_the_sources_that_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {path.relative_to(ROOT).as_posix() for path in runs._sources()}
    assert {"policies/planning/plan.py", "proxy/lab/quality.py", "proxy/kernel/plan.py"} < names
    assert not {name for name in names if name.startswith(("proxy/lab/terminal", "tests/long/figures/tables"))}


# --- tables ---


def run(session: str, kind: str, bill: float, preset: str = "coding-agent", **others: Any) -> Run:
    sight = dict.fromkeys(("all", "rare", "at_risk_rare", "quoted", "quoted_lines", "at_risk_quoted_lines"), (10, 9))
    values = {
        "prices": "gpt-5.4",
        "requests": 10,
        "whole_bill": bill,
        "marks_alone": 1.0,
        "worst_past_request_20": bill + 0.1,
    }
    counts = dict.fromkeys(("sent", "peak", "breaks", "calls", "faults"), 1)
    needs = {**dict.fromkeys(Needs.JSON, 0), "median_turns_ago": None}
    fields = {**values, **counts, "worst_at_any_stop": bill, "sight": sight, "needs": needs, **others}
    return Run(session=session, kind=kind, preset=preset, bill=bill, **fields)


RUNS: Sequence[Run] = (
    run("a", "long", 0.5),
    run("b", "long", 0.9, sight=dict.fromkeys(run("b", "long", 1).sight, (30, 15))),
    run("c", "chat", 1.0, sight=dict.fromkeys(run("c", "chat", 1).sight, (0, 0))),
    run("a", "long", 0.7, "gentle"),
)


def test_a_mean_never_stands_alone() -> None:
    summary = tables.summary([*RUNS, run("d", "long", 0.6, whole_bill=0.8, prices="other")], "coding-agent")
    assert "| long (3) | 0.70/0.70 (0.90/0.90) | 0.60/0.80 | 0.70-0.90 |" in summary
    assert "| chat (1) | 1.00/1.00 | - | - |" in summary
    (row,) = [line for line in tables.kinds(RUNS, "coding-agent").split("\n") if line.startswith("| long")]
    # means over sessions of what is visible and rare, and the lowest; all items together of what is at risk and quoted
    assert "| 0.70 (worst 0.90) | 1.00 | 1.00 | 0.70 | 0.700 / 0.700 / 0.600 / 0.600 / 0.600 | 0.500 | 10.0 |" in row
    each = tables.sessions(RUNS, "coding-agent", ["gpt-5.4"])
    assert [line.split(" | ")[0] for line in each.split("\n")[2:]] == ["| a (long)", "| b (long)", "| c (chat)"]
    assert "| 0.900 | 1.00 | 0.500 / 0.500 / 0.500 / 0.500 / 0.500 |" in each


def test_what_was_needed_stands_beside_the_bill_of_each_session() -> None:
    found = {"out_of_sight": 3, "actions": 10, "edits_out_of_sight": 1, "edits": 2, "connected": 4, "hidden_texts": 5}
    none = dict.fromkeys(found, 0) | {"actions": 7, "median_turns_ago": None}
    given = [
        run("a", "long", 0.5, needs=found | {"median_turns_ago": 12.5}),
        run("b", "chat", 1.0, needs=none),
        RUNS[3],
    ]
    rows = tables.needs(given, "coding-agent", ["gpt-5.4", "other"]).split("\n")[2:]
    assert rows == [
        "| a (long) | 0.500 | 3 of 10 | 1 of 2 | 4 of 5 | 12.5 | - | - | - | - | - |",
        "| b (chat) | 1.000 | 0 of 7 | - | - | - | - | - | - | - | - |",
    ]


def test_a_group_that_a_person_named_stands_behind_the_kinds() -> None:
    text = tables.summary([run("d", "claude-code", 0.9), *RUNS], "coding-agent")
    assert [line.split(" | ")[0] for line in text.split("\n")[2:]] == ["| long (2)", "| chat (1)", "| claude-code (1)"]


def test_presets_stand_beside_each_other_with_the_worst_of_all_sessions() -> None:
    default, gentle = tables.presets(RUNS).split("\n")[2:]
    assert default.startswith("| `coding-agent` | gpt-5.4 | 0.70 | 1.00 | 1.00 | 1.10 |")
    assert gentle.startswith("| `gentle` | gpt-5.4 | 0.70 | - | 0.70 | 0.80 |")


def test_a_table_takes_the_place_of_the_one_before() -> None:
    text = "before\n<!-- figures: one -->\nold\n<!-- end -->\nbetween\n<!-- figures: two -->\n<!-- end -->\n"
    once = tables.put(text, {"one": "| 1 |", "two": r"| \1 |"})
    assert once == (
        "before\n<!-- figures: one -->\n\n| 1 |\n\n<!-- end -->\nbetween\n"
        "<!-- figures: two -->\n\n| \\1 |\n\n<!-- end -->\n"
    )
    assert tables.put(once, {"one": "| 1 |", "two": r"| \1 |"}) == once
    with pytest.raises(ValueError, match="three"):
        tables.put(text, {"three": ""})


def test_every_table_has_its_place_in_the_documents() -> None:
    for file, those in command.tables_of(RUNS, ["gpt-5.4"]).items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert tables.put(text, those)
        others = {curve.MARKS[file], *([MARKS] if ROOT / file == FILE else [])}  # of `make curve`, `make windows`
        assert set(re.findall(r"^<!-- figures: (\S+) -->$", text, re.MULTILINE)) == those.keys() | others


def test_the_command_prints_the_tables_of_the_sessions_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(sessions.load("write_once")))
    from typer import Typer

    app = Typer()
    app.command()(command.figures)
    words = [str(tmp_path / "one.json"), "--prices", "gpt-4o", "--preset-prices", "gpt-5.4", "--print"]
    shown = CliRunner().invoke(app, [*words, "--folder", str(tmp_path / "runs"), "--processes", "2"])
    assert shown.exit_code == 0, shown.output
    assert "| short (1) | 0." in shown.stdout
    assert all(f"| `{preset}` | gpt-5.4 |" in shown.stdout for preset in PRESETS)
    assert f"figures: {len(PRESETS) + 1} of {len(PRESETS) + 1} runs" in shown.stderr
    for wrong in (["--chain", "other"], ["--prices", "nobody's"]):
        assert CliRunner().invoke(app, [*words, *wrong]).exit_code == 2


def test_what_goes_wrong_in_a_run_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "simulated", lambda *_: {}["gone"])
    with pytest.raises(KeyError) as error:
        runs.run_job(Job(SHORT, "gpt-5.4", ("gentle",)))
    assert error.value.__notes__ == ["in the run of write_once, gpt-5.4, gentle"]
