"""Short ways to write conversations down, for tests that look at one thing at a time."""

import json
from typing import Any

from policies.context import Policy
from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, converse
from policies.money.prices import Budget, Prices
from policies.planning.state import PlanSettings
from policies.tools import RECALL

openai_chat = DIALECTS["openai_chat"]

Json = dict[str, Any]

PREFIX_PRICES = Prices("m", 1.0, 4.0, read=0.1, write=1.0, window=100_000, listed=True)
MARK_PRICES = Prices("m", 1.0, 4.0, read=0.1, write=1.25, breakpoints=True, window=100_000, listed=True)
ROOMY = Budget(100_000, 1_000, 90_000, 50_000, floor=0)


def letters(text: str, /) -> int:
    """A counter that can be followed by hand: one token for each four letters begun."""
    return -(-len(text) // 4)


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def says(text: str) -> Json:
    return {"role": "assistant", "content": text}


def calls(*commands: str, text: str | None = None) -> Json:
    """An assistant message with shell calls; their ids are those of every other such message."""
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [call(f"call_{i}", "bash", {"command": command}) for i, command in enumerate(commands)],
    }


def call(call_id: str, tool: str, arguments: Json) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}


def gives(text: str, call_id: str = "call_0") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def runs(command: str, output: str) -> list[Json]:
    """A call and its result."""
    return [calls(command), gives(output)]


def recalls(ref: str, text: str, part: str = "") -> list[Json]:
    """A call of the recall tool and its answer, as they stand once they are put back."""
    arguments = {"ref": ref, "part": part} if part else {"ref": ref}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call("call_r", RECALL, arguments)]},
        gives(text, "call_r"),
    ]


def conversation_of(*messages: Json) -> Conversation:
    return converse([openai_chat.read(json.dumps(message).encode(), letters) for message in messages])


def setup(
    *policies: Policy, prices: Prices = PREFIX_PRICES, budget: Budget = ROOMY, recall: bool = True, **more: Any
) -> PlanSettings:
    return PlanSettings(
        policies=policies,
        prices=prices,
        budget=budget,
        count=letters,
        recall=recall,
        **{"exchanges": recall, **more},
    )


def signed(session: list[Json]) -> list[Json]:
    """The session as Gemini has its clients send it: each call with its signature."""
    extra = {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
    return [
        {**m, "tool_calls": [{**call, **extra} for call in m["tool_calls"]]} if "tool_calls" in m else m
        for m in session
    ]
