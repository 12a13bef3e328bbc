"""Golden files: what a policy offers at each step of a conversation that a person can read.

tests/golden/POLICY/CASE.txt: parameters as one line of JSON; one message a line; a line of dashes; the offers.
A message is {"user" | "system" | "says" | "result": TEXT} or {"calls": [[TOOL, ARGUMENTS], ...]}; "id" names another
call than the first. TEXT is a string, or a list of lines, where [LINE, N] stands for N lines numbered at {}.
An offer that the laws refuse is not listed. NARROWS_GOLDEN=write writes the offers anew.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.context import Context, DigestWant, Exceptions, Summarizing, Want
from policies.laws import may_edit
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.model.memory import ModelDigest
from policies.model.parameters import Size, Trigger
from policies.model.summary_record import Criteria, SummaryRecord
from policies.money.prices import Prices
from policies.presets import POLICIES
from tests.kit.talk import ROOMY, Json, call, conversation_of, letters

HOME = Path(__file__).parents[1] / "golden"
WRITE = os.environ.get("NARROWS_GOLDEN") == "write"  # read at import: the tests themselves see no NARROWS_ setting
RULE = "-" * 40 + "\n"
OURS = {
    **{"text_protocol": False, "recall": True, "read": 0.1, "excess": 0, "first_sight": False},
    **{"summary": None, "digests": {}},
}
"""What a file's first line may say besides the parameters of its policy; `excess` holds at the last step, and so do
a `summary`, [FIRST BLOCK, LAST BLOCK, TEXT], and `digests`, {BLOCK: [TEXT, FIRST LINE THAT STAYS, LAST LINE]}."""


def text_of(spelled: Any) -> Any:
    """TEXT, written out; arguments keep their other values."""
    if isinstance(spelled, dict):
        return {key: text_of(value) for key, value in spelled.items()}
    if not isinstance(spelled, list):
        return spelled
    lines = (
        [item] if isinstance(item, str) else [item[0].replace("{}", str(i)) for i in range(item[1])] for item in spelled
    )
    return "\n".join(line for some in lines for line in some)


def message_of(line: str) -> Json:
    said: Json = json.loads(line)
    if "calls" in said:
        made = [call(said.get("id", f"call_{i}"), tool, text_of(a)) for i, (tool, a) in enumerate(said["calls"])]
        return {"role": "assistant", "content": said.get("text"), "tool_calls": made}
    if "result" in said:
        return {"role": "tool", "tool_call_id": said.get("id", "call_0"), "content": text_of(said["result"])}
    role = next(iter(said))
    return {"role": {"says": "assistant"}.get(role, role), "content": text_of(said[role])}


def offers(policy: str, parameters: Json, conversation: Conversation) -> Iterator[str]:
    ours = {name: parameters.pop(name, default) for name, default in OURS.items()}
    sizes = tuple(block.tokens + block.frame for block in conversation.blocks)
    for name in {"when", "when_after"} & parameters.keys():
        parameters[name] = tuple(Trigger(**trigger) for trigger in parameters[name])
    if "chars" in parameters:
        parameters["over"] = Size(chars=parameters.pop("chars"))
    made = {
        conversation.blocks[int(at)].text_digest.hex(): ModelDigest(text, (first, last))
        for at, (text, first, last) in ours["digests"].items()
    }
    configured = type(POLICIES[policy])(**parameters)
    edits = dict[int, Replace]()
    for step in range(conversation.steps):
        excess = ours["excess"] if step == conversation.steps - 1 else 0
        prices = Prices(read=ours["read"])
        context = Context(
            step=step,
            prices=prices,
            budget=ROOMY,
            count=letters,
            sizes=sizes,
            text_protocol=ours["text_protocol"],
            recall=ours["recall"],
            exchanges=ours["recall"],
            excess=excess,
            summarizing=Summarizing(Criteria("p", "v"), prices, 100, 0.0),
            summaries=summaries(conversation, ours["summary"]) if step == conversation.steps - 1 else (),
            digesting=prices,
            digests=made if step == conversation.steps - 1 else {},
            edits=dict(edits),
            exceptions=Exceptions(first_sight=ours["first_sight"]),
        )
        for edit in configured(conversation, context):
            if not isinstance(edit, Replace) or may_edit(
                conversation, conversation.index[edit.at], edit.by, context, edit.lossless
            ):
                edits |= {conversation.index[edit.at]: edit} if isinstance(edit, Replace) and edit.lossless else {}
                yield f"step {step}: {told(conversation, edit)}"


def summaries(conversation: Conversation, given: Any) -> tuple[SummaryRecord, ...]:
    if given is None:
        return ()
    first, last, text = given
    span = conversation.blocks[first].anchor, conversation.blocks[last].anchor
    return (SummaryRecord("id", "c", *span, (), "m", text, 100, 10, 0.0, "p", "v"),)


def told(conversation: Conversation, edit: Edit | Want | DigestWant) -> str:
    def at(anchor: str) -> str:
        return ".".join(map(str, conversation.blocks[conversation.index[anchor]].path))

    if isinstance(edit, DigestWant):
        return f"wants a digest of {at(edit.at)}, {edit.kind}: {edit.tokens} tokens stand, {edit.cost:.0f} it costs\n"
    if isinstance(edit, Want):
        made = f"generation {edit.generation}, {edit.tokens} tokens stand"
        return f"wants {at(edit.first)} to {at(edit.last)}, new from {at(edit.since)}: {edit.reason}, {made}\n"
    if isinstance(edit, Fold):
        where = f"{edit.by} folds {at(edit.first)} to {at(edit.last)}"
    else:
        where = f"{edit.by} replaces {at(edit.at)}"
        where += f", which needs {at(edit.needs)}, otherwise {edit.otherwise}" if edit.needs else ""
    return "\n".join([where, *(f"  | {line}".rstrip() for line in edit.text.split("\n"))]) + "\n"


@pytest.mark.parametrize("case", sorted(HOME.glob("*/*.txt")), ids=lambda case: f"{case.parent.name}-{case.stem}")
def test_golden(case: Path) -> None:
    given, _, expected = case.read_text(encoding="utf-8").partition(RULE)
    first, *lines = (line for line in given.splitlines() if line.strip())
    conversation = conversation_of(*map(message_of, lines))
    found = "".join(offers(case.parent.name, json.loads(first), conversation)) or "nothing\n"
    if WRITE:
        case.write_text(given + RULE + found, encoding="utf-8")
    else:
        assert found == expected


def test_there_are_cases_for_every_policy() -> None:
    assert {name: len([*(HOME / name).glob("*.txt")]) >= 3 for name in POLICIES} == dict.fromkeys(POLICIES, True)
