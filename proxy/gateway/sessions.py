"""Names that clients give their conversations in headers of their own.

Laws
  A name that is given to Narrows, as in `x-narrows-conversation`, counts before these.
  A header only names. Histories that share a name stay apart, because each is recognized by its own messages.
"""

from collections.abc import Mapping

LONGEST = 200
SESSIONS: tuple[tuple[str, str | None], ...] = (
    ("x-claude-code-session-id", "x-claude-code-agent-id"),  # Claude Code
    ("x-openwebui-chat-id", None),  # Open WebUI
    ("x-session-affinity", None),  # opencode
)
"""The header that names a session, and the one that names an agent within it, which has a history of its own."""


def is_name(value: str) -> bool:
    """Whether a header may name a conversation."""
    return 0 < len(value) <= LONGEST and value.isprintable()


def session_of(headers: Mapping[str, str]) -> str | None:
    """The name that a client in this table gives its conversation; values that cannot be names are ignored."""
    for header, within in SESSIONS:
        name = headers.get(header)
        if name is None or not is_name(name):
            continue
        agent = headers.get(within) if within else None
        return f"{name}:{agent}" if agent and is_name(agent) else name
    return None
