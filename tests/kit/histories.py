"""Generated histories of an agent's client, and a setup under which even short ones are compacted."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from policies.compact import Compacted, compact
from policies.context import Aim, Policy
from policies.money.prices import Budget, Prices
from policies.recall import answer
from policies.rules.abridge import Abridge
from policies.rules.clip import Clip
from policies.rules.collapse import Collapse
from policies.rules.dedupe import Dedupe
from policies.rules.offload import Offload
from policies.rules.recap import Recap
from policies.rules.reuse import Reuse
from policies.rules.tidy import Tidy
from policies.rules.trim import Trim
from policies.tools import RECALL
from tests.kit.spacing import indented

Json = dict[str, Any]

EAGER: tuple[Policy, ...] = (
    Dedupe(over=10),
    Reuse(lines=2, saves=5),
    Tidy(saves=5),
    Collapse(keep=1),
    Clip(over=12, keep=1, keep_writes=3),
    Offload(over=40, keep=1, keep_files=2, relevant_tokens=5),
    Abridge(over=25, keep=1, keep_code=3, keep_share=0.2),
    Trim(keep=2),
)
RECORDING: tuple[Policy, ...] = (*EAGER[:-1], Recap(keep=2, batch=2, keep_share=0.6), EAGER[-1])
"""The same with records of old turns."""
CHEAP = Prices("m", 1, 1, read=0.5, write=1.0, window=100_000, listed=True)
ROOMY = Budget(100_000, 1_000, 90_000, 50_000, floor=0)
TIGHT = Budget(2_000, 200, 900, 500, floor=0)
BASH: Json = {
    "type": "function",
    "function": {"name": "bash", "description": "Run it", "parameters": {"type": "object"}},
}
TOOLS = (BASH,)

_WORDS = st.sampled_from(
    [
        "alpha",
        "beta_gamma",
        "src/core/main.py",
        "Error:",
        "4711",
        "def",
        "parse_line",
        "return",
        "value",
        "the",
        "of",
        "and",
        "λόγος",
        "漢字",
        "🙂",
        "\\n",
        '"',
        "{x}",
    ]
)
_TEXT = st.lists(_WORDS, min_size=1, max_size=60).map(" ".join)
_LINES = st.lists(_TEXT, min_size=1, max_size=12).map("\n".join)
_ANYTHING = st.one_of(_LINES, st.text(max_size=80), st.just(""))
_PARTS = st.sampled_from(["", "", "lines 1-3", "find alpha"])
_COMMANDS = st.sampled_from(["ls -la", "cat src/main.py", "pytest -q", "grep -rn parse src", "sed -i s/a/b/ f.py"])


@st.composite
def _call(draw: st.DrawFn, number: int) -> Json:
    name, arguments = draw(
        st.one_of(
            st.tuples(st.just("bash"), st.fixed_dictionaries({"command": _COMMANDS})),
            st.tuples(
                st.just("write_file"),
                st.fixed_dictionaries({"path": st.just("a.py"), "content": _LINES, "mode": st.just(7)}),
            ),
            st.tuples(
                st.just("think"),
                st.fixed_dictionaries({"thought": _LINES, "tags": st.lists(_TEXT, max_size=2)}),
            ),
        )
    )
    # ids repeat from one assistant message to the next: real clients do that
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


@st.composite
def sessions(draw: st.DrawFn, most: int = 12) -> list[Json]:
    """A valid session of up to `most` turns, ending with an assistant's answer."""
    messages: list[Json] = []
    if draw(st.booleans()):
        messages.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(_LINES)})
    messages.append(
        {
            "role": "user",
            "content": draw(st.one_of(_LINES, _LINES.map(lambda t: [{"type": "text", "text": t}]))),
        }
    )
    for _ in range(draw(st.integers(1, most))):
        calls = [draw(_call(number)) for number in range(draw(st.integers(0, 3)))]
        answer: Json = {"role": "assistant", "content": draw(_ANYTHING)}
        if calls:
            answer["content"] = draw(st.one_of(st.none(), _ANYTHING))
            answer["tool_calls"] = calls
        if draw(st.integers(0, 9)) == 0:
            answer["reasoning_content"] = draw(_LINES)
        messages.append(answer)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": draw(st.one_of(_ANYTHING, _LINES))}
            for call in calls
        ]
        if not calls or draw(st.integers(0, 5)) == 0:
            messages.append({"role": "user", "content": draw(_LINES)})
    messages.append({"role": "assistant", "content": "done"})
    return messages


@st.composite
def recalling(draw: st.DrawFn, most: int = 8, budget: Budget = ROOMY) -> list[Json]:
    """A session in which the model recalls some of what was hidden from it, as it stands with all exchanges back."""
    messages: list[Json] = []
    for message in draw(sessions(most)):
        if message["role"] == "assistant" and draw(st.integers(0, 2)) == 0:
            done = eagerly(messages, budget)
            if refs := sorted({ref for edit in done.plan.edits for ref in refs_in(edit.text)}):
                arguments = json.dumps({"ref": draw(st.sampled_from(refs)), "part": draw(_PARTS)})
                recall_call = {"id": "call_r", "type": "function", "function": {"name": RECALL, "arguments": arguments}}
                text = answer(done.conversation, arguments).text
                messages.append({"role": "assistant", "content": draw(st.none() | _TEXT), "tool_calls": [recall_call]})
                messages.append({"role": "tool", "tool_call_id": "call_r", "content": text})
        messages.append(message)
    return messages


def refs_in(text: str) -> list[str]:
    """The references that a text of ours names."""
    return re.findall(r"\[narrows:(?: lines? [0-9-]+ of [^\n]{1,90}? above)?[^\]]*\bref (\d[\d+]*)", text)


def requests(messages: list[Json]) -> list[list[Json]]:
    """The history before each assistant message: what the client sent to get it."""
    return [messages[:i] for i, message in enumerate(messages) if message["role"] == "assistant"]


def body_of(messages: list[Json], tools: Sequence[Json] | None = TOOLS, **fields: Any) -> bytes:
    """A request body, with the spacing of a client that is not ours. `tools` None: it brings none."""
    brought = {} if tools is None else {"tools": tools}
    return indented({"model": "m", "messages": messages, **brought, **fields})


def eagerly(
    messages: list[Json],
    budget: Budget = ROOMY,
    recall: bool = True,
    policies: tuple[Policy, ...] = EAGER,
    aim: Aim = "bill",
    **fields: Any,
) -> Compacted:
    """Compacted under the eager setup, with the recall tool in the request."""
    body = body_of(messages, **fields)
    return compact(body, policies=policies, prices=CHEAP, budget=budget, aim=aim, recall=recall)


def sent_messages(done: Compacted) -> list[Mapping[str, Any]]:
    """The messages of the new body."""
    messages: list[Mapping[str, Any]] = json.loads(done.body)["messages"]
    return messages
