"""How items must follow each other: outputs their calls, and what was said the reasoning that led to it."""

import re
from collections.abc import Sequence
from itertools import pairwise

from proxy.lab.provider.responses.output import NEEDS
from proxy.lab.provider.responses.prompt import CALLS, OUTPUTS, REASONING, is_of_model, kind_of
from proxy.lab.provider.rules import Json, Violation, Violations
from proxy.lab.provider.sealed import opened

_OURS = re.compile(rf"[a-z]+_([0-9a-f]{{24}})[0-9a-f]*({NEEDS}?)")
"""The ids that this provider gives: the reply, and whether the item needs its reasoning."""
_KINDS = {"function_call": "function call", "custom_tool_call": "custom tool call"}


def order_faults(items: Sequence[Json], whole: bool) -> Violations:
    """Each output answers a call before it, each call is answered, and once. Where the input is not the `whole` of the
    history, the call may be elsewhere."""
    waiting: dict[tuple[str, str], None] = {}
    for item in items:
        kind = kind_of(item)
        if kind in CALLS:
            waiting[kind, item["call_id"]] = None
        elif kind in OUTPUTS:
            name = OUTPUTS[kind], item["call_id"]
            if name not in waiting and whole:
                said = f"No tool call found for {_KINDS[name[0]]} output with call_id {name[1]}."
                yield Violation(said, "input")
            waiting.pop(name, None)
    for kind, call_id in waiting:
        yield Violation(f"No tool output found for {_KINDS[kind]} {call_id}.", "input")
    yield from _twice(items)


def _twice(items: Sequence[Json]) -> Violations:
    seen = set[str]()
    for item in items:
        name = item.get("id")
        if isinstance(name, str) and name in seen and kind_of(item) != "item_reference":
            said = f"Duplicate item found with id {name}. Remove duplicate items from your input and try again."
            yield Violation(said, "input")
        seen.add(name if isinstance(name, str) else "")


def reasoning_faults(items: Sequence[Json]) -> Violations:
    """What was thought comes back as it was, with what it led to behind it."""
    for i, item in enumerate(items):
        if kind_of(item) == "reasoning" and item.get("encrypted_content") is not None:
            yield from _encrypted(item["encrypted_content"])
        if kind_of(item) == "reasoning" and not (i + 1 < len(items) and _follows(item, items[i + 1])):
            said = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            yield Violation(said, "input")
    for before, item in pairwise([{}, *items]):
        yield from _led(before, item)


def _encrypted(content: str) -> Violations:
    if opened(REASONING, content) is None:
        said = f"The encrypted content {content[:4]}...{content[-4:]} could not be verified."
        yield Violation(said, None, "invalid_encrypted_content")


def _follows(item: Json, following: Json) -> bool:
    """Whether reasoning led to the next item: one of the model's, and of the same reply as far as ids tell."""
    one, other = _reply_of(item), _reply_of(following)
    return is_of_model(following) and (not one or not other or one == other)


def _led(before: Json, item: Json) -> Violations:
    found = _OURS.fullmatch(item.get("id") or "")
    if found and found[2] and not (kind_of(before) == "reasoning" and _reply_of(before) in ("", found[1])):
        said = f"Item '{item['id']}' of type '{kind_of(item)}' was provided without its required 'reasoning' item."
        yield Violation(said, "input")


def _reply_of(item: Json) -> str:
    found = _OURS.fullmatch(item.get("id") or "")
    return found[1] if found else ""
