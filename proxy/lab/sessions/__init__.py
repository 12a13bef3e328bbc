"""The recorded sessions that come with Narrows: what the demo drives through the proxy, and what tests use.

write_once  A small task of a coding agent in 18 messages, about 48,500 characters: two files read, a failing
            test, a patch, the whole file written anew, green tests. Files, traceback and two arguments are
            nearly all of it, prose is next to nothing. It ends with the user's next wish, not yet answered.
follow_up   Such a task again, without system text: one test mended in 13 messages, the report, then the wish of
            another change, for which a second file is read. 18 messages, 48,700 characters.
long_day    A working day of such an agent on a parcel-tracking service: four requests in about 170 messages,
            49,000 tokens. Files are read, edited and read again, tests fail and pass, commands repeat
            themselves. It ends with the agent's report.

Each is `{"model", "messages", "tools"}` in the form of OpenAI chat completions, one message a line, and true
to itself: what a tool returned is what the files held then. Both are original and belong to the project.
"""

import json
from importlib.resources import files
from typing import Any

_SUFFIX = ".json"


def names() -> list[str]:
    entries = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in entries if name.endswith(_SUFFIX))


def load(name: str) -> dict[str, Any]:
    """One session, fresh at each call; `KeyError` for a name that is not among `names()`."""
    if name not in names():
        raise KeyError(name)
    session: dict[str, Any] = json.loads((files(__name__) / f"{name}{_SUFFIX}").read_text(encoding="utf-8"))
    return session
