"""Which API is spoken where, and what Narrows does there: the one table of paths.

Laws
  What the table does not name is relayed: nothing is compacted by accident.
  An error has the form of the API that is spoken there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["chat", "count", "relay", "compress"]


@dataclass(frozen=True, slots=True)
class Route:
    """The API that is spoken, and what is done: `chat` is compacted, `count` planned as if it were sent, `compress`
    answered here. `implied` is a JSON member that a body to be counted cannot have, though the request that is sent
    later has it."""

    dialect: str
    kind: Kind = "relay"
    implied: bytes = b""


_CHAT, _RESPONSES, _MESSAGES = "openai_chat", "openai_responses", "anthropic_messages"

ROUTES: Mapping[str, Route] = {
    "/v1/chat/completions": Route(_CHAT, "chat"),
    "/v1/responses": Route(_RESPONSES, "chat"),
    "/v1/responses/input_tokens": Route(_RESPONSES, "count", b'"store":false'),
    "/v1/messages": Route(_MESSAGES, "chat"),
    "/v1/messages/count_tokens": Route(_MESSAGES, "count"),
}
"""By the path that is posted to. What is below one of these paths belongs to the same API."""
COMPRESS, RETRIEVE = "/v1/compress", "/v1/retrieve/"
"""The paths of the compress API, where it is served; elsewhere they are relayed as any other."""
CHATS: Mapping[str, str] = {path: route.dialect for path, route in ROUTES.items() if route.kind == "chat"}
"""The paths of what is compacted, and the APIs that are spoken there."""
_OTHERS = ("/v1/models", "/v1/embeddings", "/v1/completions")
"""Other paths at which clients ask first."""
_HAS_V1 = "let base_url (OPENAI_BASE_URL) end in /v1 and in nothing else."
_ADDS_V1 = "leave /v1 out of base_url (ANTHROPIC_BASE_URL), as this client adds it."


def _mistakes() -> Iterator[tuple[str, tuple[str, str]]]:
    """Paths at which clients ask that were given a wrong base_url, each with the one that is meant, and the remedy."""
    for path in (*ROUTES, *_OTHERS):
        bare = path.removeprefix("/v1")
        yield bare, (path, _HAS_V1)
        yield f"/v1{path}", (path, _ADDS_V1 if path.startswith("/v1/messages") else _HAS_V1)
        for chat, dialect in CHATS.items():  # a base_url that names what is asked, too
            yield f"{chat}{bare}", (path, _HAS_V1)
            yield f"{chat}{path}", (path, _ADDS_V1 if dialect == _MESSAGES else _HAS_V1)


MISTAKES: Mapping[str, tuple[str, str]] = {wrong: meant for wrong, meant in _mistakes() if wrong not in ROUTES}


def spoken(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The APIs whose requests may come with these headers; their bodies tell which it is."""
    # every request in Anthropic's API must bring this header (Claude docs, "Versions"), and no other does
    return (_MESSAGES,) if "anthropic-version" in headers else (_CHAT, _RESPONSES)
