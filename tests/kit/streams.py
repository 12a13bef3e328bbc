"""What makes a stream of each API one sound reply, judged by its raw events."""

import json
from typing import Any

Json = dict[str, Any]


def events(raw: bytes) -> list[tuple[str, Json | str]]:
    """The events of a stream: the name and the data of each."""
    found = []
    for part in raw.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in part.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in lines:
            text = lines["data"]
            found.append((lines.get("event", ""), text if text == "[DONE]" else json.loads(text)))
    return found


def judge_chat(raw: bytes) -> None:
    """One envelope, one end, calls counted without a gap."""
    *bodies, (_, last) = events(raw)
    assert last == "[DONE]"
    chunks = [chunk for _, chunk in bodies if isinstance(chunk, dict)]
    assert len(chunks) == len(bodies)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    pieces = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0]
    assert [piece["finish_reason"] is not None for piece in pieces] == [piece is pieces[-1] for piece in pieces]
    entries = [entry for piece in pieces for entry in piece["delta"].get("tool_calls") or ()]
    _counted([entry["index"] for entry in entries if entry.get("id")], [entry["index"] for entry in entries])


def judge_messages(raw: bytes) -> None:
    """One start, one stop; blocks begin, grow and end one after the other, counted without a gap."""
    bodies = [event for _, event in events(raw) if isinstance(event, dict)]
    assert [name for name, _ in events(raw)] == [event["type"] for event in bodies]
    kinds = [event["type"] for event in bodies if event["type"] != "ping"]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert [kinds.count(kind) for kind in ("message_start", "message_delta", "message_stop")] == [1, 1, 1]
    blocks = [event for event in bodies if event["type"].startswith("content_block_")]
    begun = [event["index"] for event in blocks if event["type"] == "content_block_start"]
    _counted(begun, [event["index"] for event in blocks])
    assert begun == [event["index"] for event in blocks if event["type"] == "content_block_stop"]


def judge_responses(raw: bytes) -> None:
    """One beginning, one end; events and items counted without a gap; the end holds what was streamed."""
    bodies = [event for _, event in events(raw) if isinstance(event, dict)]
    assert [event["sequence_number"] for event in bodies] == list(range(len(bodies)))
    kinds = [event["type"] for event in bodies]
    assert kinds[0] == "response.created"
    ends = [kind for kind in kinds if kind in ("response.completed", "response.incomplete", "response.failed")]
    assert ends == kinds[-1:]
    assert len({event["response"]["id"] for event in bodies if "response" in event}) == 1
    items = [event for event in bodies if "output_index" in event]
    begun = [event["output_index"] for event in items if event["type"] == "response.output_item.added"]
    _counted(begun, [event["output_index"] for event in items])
    done = [event["item"] for event in items if event["type"] == "response.output_item.done"]
    assert done == bodies[-1]["response"]["output"]


def _counted(begun: list[int], all_: list[int]) -> None:
    """What begins is counted from 0 without a gap, and nothing goes back to an earlier one."""
    assert begun == list(range(len(begun)))
    assert all_ == sorted(all_)
    assert set(all_) <= set(begun)
