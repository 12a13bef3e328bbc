"""A file that a person names: the body of a request, or a session; or one sentence that says why it is neither.

Law: whatever the bytes are, nothing but ValueError is raised, in words that name the fault and what is needed.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.dialects import DIALECTS, dialect_of
from proxy.addons.archive.recordings import opened

_WISH = (
    'give the JSON body of a request, or a session, such as {"model": "gpt-5.4", "messages": [...]}; '
    "`narrows generate chat` prints one"
)
_OTHERS: Mapping[str, str] = {
    "mapping": "it is an export of the ChatGPT app, which holds no requests",
    "chat_messages": "it is an export of the Claude app, which holds no requests",
    "choices": "it is a reply of a model, not what was asked",
    "output": "it is a reply of a model, not what was asked",
}
"""Other files that a person may have, by a field that shows it."""


def content_of(name: str) -> bytes:
    """The bytes of a file, or of standard input for -. Raises ValueError."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except IsADirectoryError as error:
        # recordings stand in a folder for each tenant
        files = Path(name) / ("*/*.json" if any(Path(name).glob("*/*.json")) else "*.json")
        raise ValueError(f"cannot read {name}: it is a folder; name the files in it, such as {files}") from error
    except OSError as error:
        raise ValueError(f"cannot read {name} ({error.strerror}); name a file with a request or a session") from error


def request_in(content: bytes, place: str) -> tuple[bytes, dict[str, Any]]:
    """The body in these bytes, as UTF-8, and its values: an object whose history is a list of objects, or a text.

    Raises ValueError; `place` is how that names the file.
    """
    content = opened(content, place)
    try:
        return _read(content)
    except RecursionError as error:
        raise ValueError(refusal(place, "it is nested too deeply")) from error
    except ValueError as error:
        raise ValueError(refusal(place, str(error))) from error


def refusal(place: str, fault: str) -> str:
    return f"{place} is neither a request nor a session: {fault}; {_WISH}"


def _read(content: bytes) -> tuple[bytes, dict[str, Any]]:
    """Raises ValueError, which names the fault alone."""
    if not content.strip():
        raise ValueError("it is empty")
    encoding = json.detect_encoding(content)
    try:
        text = content.decode(encoding, "surrogatepass")
    except UnicodeDecodeError as error:
        raise ValueError("it is not JSON, nor any text in UTF-8") from error
    value = _parsed(text)
    fault = _fault(value)
    if fault:
        raise ValueError(fault)
    return (content if encoding == "utf-8" else text.encode("utf-8", "surrogatepass")), value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            fault = "it is not JSON but several values, as in JSON Lines: each needs a file of its own"
            raise ValueError(fault) from error
        raise ValueError(f"it is not JSON (line {error.lineno}, column {error.colno}: {error.msg})") from error
    except ValueError as error:
        raise ValueError("it is not JSON (it holds NaN, Infinity, or thousands of digits)") from error


def _refuse(name: str) -> None:
    """Python reads these, and nobody else does."""
    raise ValueError(name)


def _fault(value: Any) -> str:
    """Why a value is not the body of a request; "" where it is."""
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, dict) and "messages" not in first and "input" not in first:
        for field, fault in _OTHERS.items():
            if field in first:
                return fault
    if isinstance(value, list):
        return 'it is a list; where that is the history, write {"model": "gpt-5.4", "messages": ...} around it'
    if not isinstance(value, dict):
        return "it is not a JSON object"
    field = DIALECTS[dialect_of(value)].fields.history
    history = value.get(field)
    if not history:
        return f"its `{field}` is empty" if field in value else "it holds no `messages` and no `input`"
    if not isinstance(history, list):
        return "" if isinstance(history, str) and field == "input" else f"its `{field}` is not a list"
    for name, entries in ((field, history), ("tools", value.get("tools") or [])):
        if not isinstance(entries, list):
            return f"its `{name}` is not a list"
        for at, entry in enumerate(entries):
            if not isinstance(entry, dict):
                return f"{name}[{at}] is not a JSON object"
    return "" if isinstance(value.get("model") or "", str) else "its `model` is not a text"
