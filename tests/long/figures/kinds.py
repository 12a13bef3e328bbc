"""What kind of session a recording is. Law: it follows from the recording's own shape, never from its name."""

from collections.abc import Mapping, Sequence

from policies.model.conversation import Block
from policies.tools import arguments_of
from proxy.lab.replay.recorded import CHAIN, Session
from proxy.lab.replay.report import LONG

PEOPLE = 10
"""So many different messages of people make a session with tools an interactive one."""
_BEGINNING = 60
"""Characters by which messages are told apart: what a program says again and again is one message."""
KINDS: Mapping[str, str] = {
    "long": f"with tools, {LONG} or more requests",
    "interactive": f"with tools and {PEOPLE} or more different messages of people",
    "mcp": "most calls go to MCP servers",
    "short": f"with tools, fewer than {LONG} requests",
    "text": "commands travel as text, without tools",
    "chat": "neither tools nor commands",
    CHAIN: "sessions as one conversation, every order",
}


def kind_of(session: Session) -> str:
    """The kind of a session, of `KINDS`."""
    if session.group:
        return session.group
    blocks = session.conversation().blocks
    calls = [block for block in blocks if block.kind == "call"]
    if not calls:
        prose = [block for block in blocks if block.kind == "assistant"]
        return "text" if 2 * sum("```" in block.text for block in prose) >= len(prose) else "chat"
    if 2 * sum(map(_is_of_mcp, calls)) >= len(calls) or _is_in_mcp_content(blocks):
        return "mcp"
    if len({block.text[:_BEGINNING] for block in blocks if block.kind == "user"}) >= PEOPLE:
        return "interactive"
    return "long" if len(session.turns) >= LONG else "short"


def _is_of_mcp(call: Block) -> bool:
    """A tool that clients name after a server of that protocol, or a call that names a server and a tool of it."""
    return call.tool.startswith(("mcp_", "mcp-")) or {"server_name", "tool_name"} <= arguments_of(call.text).keys()


def _is_in_mcp_content(blocks: Sequence[Block]) -> bool:
    """Whether most results are the content objects of MCP's own library."""
    results = [block for block in blocks if block.kind == "result"]
    return 2 * sum("TextContent(type=" in block.text[:200] for block in results) >= max(len(results), 1)
