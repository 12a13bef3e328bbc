"""Responses that the provider keeps: a later request may go on from one, or refer to its items."""

from collections.abc import Iterator
from typing import Any

from proxy.lab.provider.answers import Turn
from proxy.lab.provider.api import Kept
from proxy.lab.provider.responses.prompt import items, kind_of
from proxy.lab.provider.responses.reply import response
from proxy.lab.provider.rules import Json, Violation


def resolved(asked: Json, kept: Kept) -> Json | Violation:
    """The request with the history that it goes on from, and with the items that it only names."""
    name = asked.get("previous_response_id")
    earlier = kept(name) if name is not None else {"input": [], "output": []}
    if earlier is None:
        said = f"Previous response with id '{name}' not found."
        return Violation(said, "previous_response_id", "previous_response_not_found")
    whole = [*earlier["input"], *earlier["output"]]
    for item in items(asked):
        known = _known(item, kept)
        if known is None:
            said = f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false."
            return Violation(said, "input", status=404)
        whole.append(known)
    apart = {key: value for key, value in asked.items() if key != "previous_response_id"}
    return asked if whole == asked.get("input") else apart | {"input": whole}


def _known(item: Json, kept: Kept) -> Json | None:
    """An item; what was kept of it where it says no more than its id."""
    kind = kind_of(item)
    named = kind == "item_reference" or (kind == "reasoning" and item.get("encrypted_content") is None)
    return kept(str(item.get("id"))) if named else item


def kept(turn: Turn, whole: Json) -> dict[str, Json]:
    """The response and its items, unless the request wants nothing to be kept."""
    return dict(_kept(turn, whole)) if turn.asked.get("store") is not False else {}


def _kept(turn: Turn, whole: Json) -> Iterator[tuple[str, dict[str, Any]]]:
    ended = response(turn)
    yield ended["id"], {**ended, "input": items(whole)}
    for item in ended["output"]:
        yield item["id"], item
