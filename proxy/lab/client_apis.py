"""The APIs as their clients use them."""

from collections.abc import Callable, Mapping, Sequence

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from policies.model.conversation import Message
from proxy.lab.provider import APIS
from proxy.lab.provider.client import ClientApi

CLIENT_APIS: Mapping[str, ClientApi] = {name: api.client for name, api in APIS.items()}


def read(dialect: str, entry: object, count: Callable[[str], int] = len) -> Message:
    """An entry of a history."""
    return DIALECTS[dialect].read(as_json(entry), count)


def newest_reply(dialect: str, history: Sequence[object]) -> int:
    """Where the newest reply of the model begins; the end of the history where there is none."""

    def is_reply(entry: object) -> bool:
        return read(dialect, entry).role == "assistant"

    at = next((at for at in reversed(range(len(history))) if is_reply(history[at])), len(history))
    while 0 < at < len(history) and read(dialect, history[at]).partial and is_reply(history[at - 1]):
        at -= 1
    return at
