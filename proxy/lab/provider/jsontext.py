"""JSON as a provider reads and writes it: what the fast library refuses, the tolerant one may still read.

A lone surrogate (`"\\ud800"`) is legal JSON that orjson refuses in both directions; real providers take it.
"""

import json
from typing import Any, NoReturn

import orjson


class NotJSONError(ValueError):
    """The text is not JSON, or is nested deeper than a reader goes."""


def read(text: bytes | str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise NotJSONError(str(error)) from error


def _refuse(constant: str) -> NoReturn:
    raise NotJSONError(f"{constant} is not JSON")


def write(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return json.dumps(value, separators=(",", ":")).encode()
        except RecursionError as error:
            raise NotJSONError("nested too deeply") from error
