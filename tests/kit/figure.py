"""The eighteen messages of the figure: a test mended, a report, and a file read for what is wanted next."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from policies.compact import Compacted, compact
from policies.context import Policy
from policies.money.prices import BudgetLimits, Prices
from policies.presets import Preset
from proxy.lab import sessions
from proxy.lab.demo import recorded
from proxy.lab.replay.recorded import Session
from tests.kit.histories import Json

FIGURE = recorded("follow_up")
MESSAGES = FIGURE.messages
GO_ON = {"role": "user", "content": "Yes, please."}
"""Said after them: then every result is answered."""
NO_CACHE = Prices(read=1, write=1)
NO_FLOOR = BudgetLimits(window=128_000, floor=0).budget(NO_CACHE)
"""What the figure shows is small, but drawn whole."""
_OLD = '            Section("Balances", tuple(balance_lines(statements))),\n'
_NEW = '            Section("Rounding", tuple(rounding_lines(self.ledger.rounding(self.month)))),\n'
EDIT = {"path": "commonpot/board.py", "old_string": _OLD, "new_string": _OLD + _NEW}
"""What the model does next: it quotes the file that it read."""


def going_on() -> Session:
    """The session until that edit is made and tested, as it would have been recorded."""
    calls = (("edit_file", EDIT), ("bash", {"command": "python -m pytest"}), ("bash", {"command": "ruff check ."}))
    answers = ("Edited commonpot/board.py (1 replacement at line 77).", "33 passed in 0.10s", "All checks passed!")
    later: list[Json] = [GO_ON]
    for at, ((tool, arguments), answer) in enumerate(zip(calls, answers, strict=True)):
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{at}", "type": "function", "function": function}
        later.append({"role": "assistant", "content": "A section of its own, and no more.", "tool_calls": [call]})
        later.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
    return replace(
        FIGURE, messages=(*MESSAGES, *later, {"role": "assistant", "content": "The board shows rounding()."})
    )


def compacted(
    policies: str | Preset | tuple[Policy, ...], messages: Sequence[Json] = (*MESSAGES, GO_ON), **chosen: Any
) -> Compacted:
    """The request with these messages, by these policies; nothing is remembered, everything can be recalled."""
    body = {"model": "m", "messages": messages, "tools": sessions.load("follow_up")["tools"]}
    return compact(json.dumps(body).encode(), policies=policies, recall=True, **{"prices": NO_CACHE, **chosen})


def sent(result: Compacted) -> list[Json]:
    """The messages that would go out."""
    messages: list[Json] = json.loads(result.body)["messages"]
    return messages


def characters(messages: Sequence[Json]) -> int:
    """As a reader counts them: texts and the values of arguments, without the signs that JSON needs."""
    return sum(len(text) for message in messages for text in texts_of(message))


def texts_of(message: Json) -> Iterator[str]:
    """The text of a message, and the values of its calls' arguments."""
    yield message["content"]
    for call in message.get("tool_calls", ()):
        yield from json.loads(call["function"]["arguments"]).values()


def changed(result: Compacted) -> set[int]:
    """The messages that would not go out as they are, counted from 1 as in the figure."""
    return {at for at, (old, new) in enumerate(zip(MESSAGES, sent(result), strict=False), 1) if old != new}
