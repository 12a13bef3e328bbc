"""V9: what people want left as it is reaches the provider byte for byte, and its turns are never replaced, whatever the
preset; all other laws hold beside it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.compact import Compacted, compact
from policies.context import Aim
from policies.keep import Patterns, Protection, digest_of, names, patterns_of
from policies.model.conversation import Conversation, converse
from policies.model.edits import Edit, Fold, Replace
from policies.model.memory import Memory, StepRecord
from policies.money.prices import Budget
from policies.planning.plan import plan
from policies.planning.state import PlanSettings, PlanState
from policies.presets import PRESETS, Preset
from proxy.lab.provider import PREFIX, find_violation
from tests import examples
from tests.kit.forms import plain
from tests.kit.histories import CHEAP, EAGER, RECORDING, ROOMY, TIGHT, TOOLS, Json, requests, sessions
from tests.kit.talk import setup
from tests.planning.test_laws import AIMS, BUDGETS, check_law_2, check_law_4, thorough
from tests.planning.test_laws_apis import ROWS, is_part
from tests.planning.test_same_plans import BUDGETS as WIDE
from tests.planning.test_same_plans import CACHES, carried, outcome, working
from tests.planning.test_same_plans import TIGHT as NARROW
from tests.planning.test_summary_laws import ROLLING, Server, _small, long_session  # noqa: F401 - a fixture

KEEPS = st.lists(
    st.sampled_from(
        [
            "bash",
            "write_*",
            "think",
            "*.py",
            "core/*.py",
            "f.py",
            "text:parse_line",
            "text:漢字 λόγος",
            "none",
            "text:done",
        ]
    ),
    min_size=1,
    max_size=3,
).map(tuple)
PRESET_NAMES = st.sampled_from([*PRESETS, "eager on all", "records of short turns", "rolling on all"])


def policies_of(name: str) -> Preset:
    own = {"eager on all": EAGER, "records of short turns": RECORDING, "rolling on all": ROLLING}
    return PRESETS[name] if name in PRESETS else Preset(own[name])


def fits(path: str, pattern: str) -> bool:
    """Whether a pattern fits a path, or the end of it behind any slash."""
    steps = path.split("/")
    return any(fnmatchcase("/".join(steps[at:]), pattern) for at in range(len(steps)))


def is_named(keep: Sequence[str], text: str, tool: str = "", arguments: str = "{}") -> bool:
    """The same as policies.keep says, in other words."""
    values = json.loads(arguments)
    paths = [*values.get("command", "").split()[1:], *([values["path"]] if "path" in values else [])]
    for pattern in keep:
        if pattern.startswith("text:") and pattern.removeprefix("text:") in text:
            return True
        if tool and (fnmatchcase(tool, pattern) or any(fits(path, pattern) for path in paths)):
            return True
    return False


def leaves(messages: Sequence[Json], keep: Sequence[str] | None = None) -> Iterator[tuple[int, str]]:
    """The texts, calls and results of a request, with their messages; with `keep` those that it names."""
    made: dict[str, Json] = {}
    for at, message in enumerate(messages):
        content = message.get("content")
        texts = [part["text"] for part in content if "text" in part] if isinstance(content, list) else [content]
        function = made.get(message["tool_call_id"], {}) if message["role"] == "tool" else {}
        by = function.get("name", ""), function.get("arguments", "{}")
        for text in texts if message["role"] not in ("system", "developer") else ():
            if text and (keep is None or is_named(keep, text, *by)):
                yield at, f"{message['role']}: {text}"
        for call in message.get("tool_calls", ()):
            made[call["id"]] = function = call["function"]
            if keep is None or is_named(keep, function["arguments"], function["name"], function["arguments"]):
                yield at, f"call {function['name']} {function['arguments']}"


def check_stays(messages: Sequence[Json], done: Compacted, keep: Sequence[str]) -> int:
    """What the patterns name is sent as the client wrote it, and no fold has a part of its turn. Returns how much."""
    staying, sent = list(leaves(messages, keep)), leaves(json.loads(done.body)["messages"])
    assert is_part([text for _, text in staying], [text for _, text in sent])
    blocks, index, places = done.conversation.blocks, done.conversation.index, {at for at, _ in staying}
    turns = {block.turn for block in blocks if block.message in places}
    folds = [edit for edit in done.plan.edits if isinstance(edit, Fold)]
    runs = [range(index[fold.first], index[fold.last] + 1) for fold in folds]
    assert not turns & {blocks[at].turn for run in runs for at in run}
    return len(staying)


@settings(thorough, max_examples=examples(80))
@given(PRESET_NAMES, sessions(9), BUDGETS, AIMS, KEEPS)
def test_v9_what_is_to_stay_is_sent_as_it_is_in_any_preset(
    name: str, session: list[Json], budget: Budget, aim: Aim, keep: tuple[str, ...]
) -> None:
    steps, server = [], Server(budget, aim=aim, policies=policies_of(name), keep=keep)
    for request in requests(session):
        before = server.memory
        steps.append(server.serve(request))
        check_stays(request, steps[-1], keep)
        check_law_4(request, steps[-1])
        again = replace(server, memory=replace(before, steps=server.memory.steps)).serve(request)
        assert again.body == steps[-1].body
    check_law_2(steps)


@settings(thorough, max_examples=examples(40))
@given(
    PRESET_NAMES,
    st.randoms(use_true_random=False),
    st.sampled_from(CACHES),
    st.sampled_from([*WIDE, NARROW]),
    AIMS,
)
def test_v9_s1_a_history_with_what_stays_is_planned_alike_however_it_came(
    name: str, random: Random, cache: Json, budget: Budget, aim: Aim
) -> None:
    """At once, step by step, from records, and where the patterns change and change back."""
    preset = policies_of(name)
    never = setup(*preset.policies, budget=budget, aim=aim, exceptions=preset.exceptions, **cache)
    keep = patterns_of(random.sample(["bash", "a.py", "*_file", "text:Error:", "text:parse_line value"], 2))
    setting, read = replace(never, keep=keep), dict[str, Any]()
    state: PlanState | None = None
    before: Conversation | None = None
    steps: dict[str, StepRecord] = {}
    for request in requests(working(random)):
        conversation = carried(request, before, read)
        planned = plan(carried(request, None, read), setting)
        assert outcome(plan(conversation, setting, None, state)) == outcome(planned)
        assert plan(conversation, setting, Memory(steps)).edits == planned.edits
        anchor = conversation.end_anchor(conversation.steps - 1)
        steps[anchor] = StepRecord(anchor, planned.new, planned.reason, recall=True, keep=digest_of(keep))
        assert not any(stays(edit, conversation, keep) for edit in planned.edits)
        before, state = conversation, planned.state
    assert before is not None
    assert outcome(plan(before, never)) == outcome(plan(carried(request, None, read), never))
    check_change(before, never, setting)


@pytest.mark.parametrize("dialect", ROWS)
@settings(thorough, max_examples=examples(12))
@given(sessions(8), st.sampled_from([ROOMY, TIGHT]), KEEPS)
def test_v9_v1_in_every_api_what_is_sent_is_valid_and_has_what_stays(
    dialect: str, session: list[Json], budget: Budget, keep: tuple[str, ...]
) -> None:
    told, dressed = ROWS[dialect]
    for messages in requests(session):
        body = dressed(told(plain({"model": "m", "messages": messages, "tools": list(TOOLS)})), frozenset())
        raw = json.dumps(body, ensure_ascii=False).encode()
        done = compact(raw, dialect=dialect, policies=RECORDING, prices=CHEAP, budget=budget, recall=True, keep=keep)
        assert find_violation(json.loads(done.body), PREFIX, dialect) is None
        assert not any(stays(edit, done.conversation, patterns_of(keep)) for edit in done.plan.edits)


def stays(edit: Edit, conversation: Conversation, keep: Patterns) -> bool:
    """Whether an edit changes what is to stay."""
    if isinstance(edit, Replace):
        return names(keep, conversation, conversation.index[edit.at])
    run = range(conversation.index[edit.first], conversation.index[edit.last] + 1)
    turns = {conversation.blocks[at].turn for at in run}
    of_turns = (at for at, block in enumerate(conversation.blocks) if block.turn in turns and block.kind != "system")
    return any(names(keep, conversation, at) for at in of_turns)


def check_change(conversation: Conversation, never: PlanSettings, setting: PlanSettings) -> None:
    """Patterns that come, go and come again: replicas send the same, whatever they planned or know of the others, as if
    the patterns had been there all along."""
    histories = [
        converse(conversation.messages[: conversation.blocks[end - 1].message + 1]) for end in conversation.ends
    ]
    steps: dict[str, StepRecord] = {}
    states: dict[Patterns, PlanState] = {}
    last: Sequence[Edit] = ()
    for at, history in enumerate(histories[-9:]):
        current = (never, setting)[at // 3 % 2]
        here = plan(history, current, Memory(steps), states.get(current.keep))
        for memory in (Memory(steps), None):
            assert plan(converse(history.messages), current, memory).edits == here.edits
        assert not any(stays(edit, history, current.keep) for edit in here.edits)
        if at % 3 and not here.reason:  # nothing is taken back
            assert set(here.edits) >= set(last)
        last, states[current.keep] = here.edits, here.state
        anchor = history.end_anchor(history.steps - 1)
        steps[anchor] = StepRecord(anchor, here.new, here.reason, recall=True, keep=digest_of(current.keep))


@pytest.mark.parametrize("fault", ["keeps", "keeps_turn"])
def test_a_fault_in_what_stays_makes_the_checks_fail(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single block that is shortened all the same, or a turn that is folded."""
    keep, history = ("step-3", "step-4"), requests(long_session(14))
    server = Server(ROOMY, keep=keep)
    assert max(check_stays(request, server.serve(request), keep) for request in history) == 4
    assert server.memory.summaries, "else no turn was folded"
    monkeypatch.setattr(Protection, fault, lambda *_: False)
    server = Server(ROOMY, keep=keep)
    done = [server.serve(request) for request in history]
    with pytest.raises(AssertionError):
        check_stays(history[-1], done[-1], keep)


def test_v9_where_all_stays_no_summary_is_asked_for_and_where_some_does_it_goes_around() -> None:
    session = long_session(18)
    for keep, asked in ((("bash",), False), (("step-7", "step-8"), True), (("text:go on 5",), True)):
        server = Server(ROOMY, keep=keep)
        done = [server.serve(request) for request in requests(session)]
        assert bool(server.memory.summaries) is asked
        folds = [edit for edit in done[-1].plan.edits if isinstance(edit, Fold) and edit.origin]
        assert len(folds) > 1 if asked else not folds
        check_stays(requests(session)[-1], done[-1], keep)
