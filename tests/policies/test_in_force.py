"""Reports of subagents and instructions from files stay: until they are asked for again, in a tenth of the window."""

import json
from collections.abc import Mapping, Sequence

import pytest

from policies.compact import Compacted, compact
from policies.dialects import DIALECTS
from policies.keep import in_force
from policies.model.conversation import Message, converse
from policies.money.prices import Budget
from policies.presets import PRESETS
from policies.tools import Toolbox
from tests.kit.figure import NO_CACHE
from tests.kit.histories import body_of
from tests.kit.talk import Json, call

ROOMY = Budget(window=200_000, reserve=1_000, high=180_000, low=150_000, floor=0)
TURNS = 60


def words(name: str, count: int = 200) -> str:
    return "\n".join(f"{name} says in line {n} what nobody else says about item_{name}_{n}" for n in range(count))


SHORTENING = [name for name in PRESETS if name not in ("lossless", "agent-summary", "harness", "deep")]
"""The presets that shorten something of such a session."""
REPORT, RULES = words("report"), words("rules")
AGENT = ("Agent", {"description": "look", "prompt": "look around", "subagent_type": "Explore"}, REPORT)
SKILL = ("Bash", {"command": "sed -n '1,400p' /r/.codex/skills/a/SKILL.md"}, RULES)


def session(first: Sequence[tuple[str, Mapping[str, object], str]], turns: int = TURNS) -> list[Json]:
    """A person's message, then calls of tools, each a turn: first these, then commands."""
    calls = [*first, *(("Bash", {"command": f"make {n}"}, words(f"make{n}", 40)) for n in range(turns - len(first)))]
    messages: list[Json] = [{"role": "user", "content": "Build it."}]
    for n, (tool, arguments, output) in enumerate(calls):
        made = call(f"c{n}", tool, dict(arguments))
        messages.append({"role": "assistant", "content": f"Step {n} goes on.", "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": output})
    return messages


def history(messages: Sequence[Json]) -> list[Message]:
    api = DIALECTS["openai_chat"]
    request = api.split(body_of(list(messages)))
    assert request is not None
    return [api.read(request.raw(at), len) for at in range(len(request.spans))]


def plan_of(messages: Sequence[Json], preset: str = "coding-agent", budget: Budget = ROOMY) -> Compacted:
    tools = [{"type": "function", "function": {"name": name}} for name in ("Agent", "Bash", "Read")]
    body = {"model": "m", "messages": messages, "tools": tools}
    return compact(json.dumps(body).encode(), policies=preset, recall=True, prices=NO_CACHE, budget=budget)


def outputs(result: Compacted) -> list[str]:
    return [message["content"] for message in json.loads(result.body)["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize("preset", SHORTENING)
def test_n2_reports_and_instructions_stay_in_every_preset(preset: str) -> None:
    result = plan_of(session([AGENT, SKILL]), preset)
    assert len(json.dumps(json.loads(result.body)["messages"])) < 0.9 * len(json.dumps(session([AGENT, SKILL])))
    assert {REPORT, RULES} <= {*outputs(result)}
    roles = {m["role"] for m in json.loads(result.body)["messages"] if REPORT in str(m.get("content"))}
    assert roles == {"tool"}


def test_n2_instructions_stay_until_the_same_file_is_read_again() -> None:
    newer = words("newer")
    messages = session([SKILL, ("Bash", {"command": "make"}, "ok"), (SKILL[0], SKILL[1], newer)])
    shown = outputs(plan_of(messages))
    assert newer in shown
    assert RULES not in shown


def test_n2_the_same_text_read_again_is_shown_once() -> None:
    shown = outputs(plan_of(session([SKILL, ("Bash", {"command": "make"}, "ok"), SKILL])))
    assert shown.count(RULES) == 1


def test_n2_another_part_of_the_file_leaves_the_first_one() -> None:
    rest = words("rest")
    command = {"command": "sed -n '401,800p' /r/.codex/skills/a/SKILL.md"}
    assert {RULES, rest} <= {*outputs(plan_of(session([SKILL, ("Bash", command, rest)])))}


@pytest.mark.parametrize(("window", "most"), [(100_000, 10_000), (1_000_000, 20_000)])
def test_n2_together_they_fill_a_tenth_of_the_window_up_to_a_bound_the_newest_first(window: int, most: int) -> None:
    reports = [words(f"agent{n}", 150) for n in range(12)]
    messages = session([("Agent", {"prompt": f"look {n}"}, text) for n, text in enumerate(reports)])
    budget = Budget(window=window, reserve=1_000, high=window * 9 // 10, low=window * 8 // 10, floor=0)
    result = plan_of(messages, budget=budget)
    stay = [text in outputs(result) for text in reports]
    count = stay.count(True)
    assert stay == [False] * (12 - count) + [True] * count
    sizes = [block.tokens for block in result.conversation.blocks if block.text in reports]
    assert sum(sizes[-count:]) <= most < sum(sizes[-count - 1 :])


def test_n2_the_window_removes_them_only_where_nothing_else_fits() -> None:
    small = Budget(window=20_000, reserve=500, high=3_000, low=2_500, floor=0)
    report = words("report", 80)
    result = plan_of(session([("Agent", {"prompt": "look"}, report)]), budget=small)
    assert report in outputs(result)  # commands went first
    tight = Budget(window=20_000, reserve=500, high=1_500, low=1_200, floor=0)
    result = plan_of(session([("Agent", {"prompt": "look"}, report)]), budget=tight)
    assert report not in outputs(result)
    assert result.plan.after <= 1_500


def test_n2_they_stay_in_each_request_of_a_session() -> None:
    messages = session([SKILL, AGENT], 45)
    for end in range(5, len(messages) + 1, 2):
        assert {REPORT, RULES} <= {*outputs(plan_of(messages[:end]))}


def test_n2_a_report_that_comes_after_the_other_results_of_its_reply_is_in_force() -> None:
    """A client may send the results of parallel calls one after the other, without an answer of the model between."""
    made = [call(f"p{at}", "Agent", {"prompt": f"look at {at}"}) for at in range(2)]
    reports = [words(f"report_{at}", 20) for at in range(2)]
    results: list[Json] = [
        {"role": "tool", "tool_call_id": f"p{at}", "content": text} for at, text in enumerate(reports)
    ]
    messages: list[Json] = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "I ask.", "tool_calls": made},
    ]
    first = history([*messages, results[0]])
    earlier = converse(first)
    last = earlier.steps - 1
    assert len(in_force(earlier, last, Toolbox(), 200_000, lambda _: None).blocks) == 1
    grown = converse(history([*messages, *results]), earlier)
    assert grown.steps - 1 == last
    assert len(in_force(grown, last, Toolbox(), 200_000, lambda _: None).blocks) == 2
