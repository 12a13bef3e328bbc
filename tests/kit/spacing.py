"""JSON over many lines, as `json.dumps(indent=1)` writes it: the entries of a history once, however often it is sent.
Python's own encoder, which alone can indent, takes longer than all that is done with the body.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def indented(body: Mapping[str, Any], comma: str = ",", colon: str = ": ") -> bytes:
    """The body, with these separators."""
    members = (
        f"{json.dumps(key, ensure_ascii=False)}{colon}{_value(value, comma, colon)}" for key, value in body.items()
    )
    return ("{\n " + f"{comma}\n ".join(members) + "\n}").encode()


def _value(value: Any, comma: str, colon: str) -> str:
    if not isinstance(value, list | tuple) or not value:
        return _written(json.dumps(value, ensure_ascii=False), comma, colon, 1)
    entries = (_written(json.dumps(entry, ensure_ascii=False), comma, colon, 2) for entry in value)
    return "[\n  " + f"{comma}\n  ".join(entries) + "\n ]"


@lru_cache(maxsize=4096)
def _written(compact: str, comma: str, colon: str, depth: int) -> str:
    text = json.dumps(json.loads(compact), indent=1, ensure_ascii=False, separators=(comma, colon))
    return text.replace("\n", "\n" + " " * depth)
