"""A record of old turns names the files that were read, each with its reference, and the last errors of commands."""

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from policies.compact import Compacted, compact
from policies.model.edits import Fold
from policies.rules.recap import Recap
from tests.kit.figure import NO_CACHE
from tests.kit.talk import Json, call
from tests.policies.test_in_force import ROOMY, words

FAILED = "FAILED tests/test_orders.py::test_the_sum_of_all_rows_is_that_of_the_table - AssertionError: 3 == 4"


def recorded() -> Compacted:
    """The session with records of its old turns, and nothing else."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("Bash", "Read")]
    body = {"model": "m", "messages": session(), "tools": tools}
    policies = (Recap(keep=5, batch=10, keep_share=0.3),)
    return compact(json.dumps(body).encode(), policies=policies, recall=True, prices=NO_CACHE, budget=ROOMY)


def session() -> list[Json]:
    """Reads of eight files and of one of them again, two commands, one of which fails, then many short turns."""
    calls = [("Read", {"file_path": f"/r/src/part_{n}.py"}, words(f"part{n}", 30)) for n in range(8)]
    calls.append(("Read", {"file_path": "/r/src/part_0.py"}, words("again", 30)))
    calls.append(("Bash", {"command": "pytest -q"}, "\n".join([words("log", 60), FAILED, words("log2", 60)])))
    calls += [("Bash", {"command": f"echo {n}"}, f"{n}") for n in range(30)]
    messages: list[Json] = [{"role": "user", "content": "Mend it."}]
    for n, (tool, arguments, output) in enumerate(calls):
        made = call(f"c{n}", tool, dict(arguments))
        messages.append({"role": "assistant", "content": f"Now {n}.", "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": output})
    return messages


def record_of(result: Compacted) -> Sequence[str]:
    return next(edit.text.split("\n") for edit in result.plan.edits if isinstance(edit, Fold))


def test_n4_a_record_names_its_files_each_with_a_reference() -> None:
    result = recorded()
    conversation, record = result.conversation, record_of(result)
    named = dict(match.groups() for line in record if (match := re.fullmatch(r"Read: (\S+), ref (\d+)", line)))
    assert set(named) == {f"/r/src/part_{n}.py" for n in range(8)}
    for path, ref in named.items():
        at = conversation.references.places.get(ref)
        assert at is not None
        expected = "again" if path.endswith("_0.py") else f"part{path[-4]}"
        assert conversation.blocks[at].text == words(expected, 30)


def test_n4_a_record_marks_what_is_left_out_between_its_lines() -> None:
    lines = record_of(recorded())
    for before, line in pairwise(lines):
        mine, next_ = (re.match(r"(\w+) says in line (\d+)", each) for each in (before, line))
        if mine and next_:
            assert (mine[1], int(mine[2]) + 1) == (next_[1], int(next_[2]))
    assert "[...]" in lines


def test_n5_a_record_has_the_last_error_of_a_command() -> None:
    assert FAILED in record_of(recorded())
