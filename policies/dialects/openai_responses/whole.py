"""The messages of a whole reply of OpenAI Responses, as a client returns them with its next request.

Law: a reply that broke off, failed or has several choices has no messages; nothing here raises.
"""

from policies.dialects.common import object_at, objects
from policies.dialects.events import Json

_WHOLE = ("completed", "incomplete", None)


def whole_messages(reply: Json) -> list[Json]:
    return list(objects(reply.get("output"))) if reply.get("status") in _WHOLE else []


def streamed_messages(events: list[Json]) -> list[Json]:
    items: list[Json] = []
    for event in events:
        kind = event.get("type")
        if kind == "response.output_item.done":
            items.append(object_at(event, "item"))
        elif kind in ("response.completed", "response.incomplete"):
            return list(objects(object_at(event, "response").get("output"))) or items
    return []
