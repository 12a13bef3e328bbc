"""Which preset is for whom: what `narrows presets` says of each in a line."""

from collections.abc import Mapping

FOR_WHOM: Mapping[str, str] = {
    "coding-agent": "agents with tools, where no model may ever be asked for a summary",
    "adaptive": "the default, for nearly everybody: agents, and chats that grow long",
    "gentle": "agents whose own prose and old turns have to stay whole",
    "eager": "long runs of agents that can read files again: cheaper, and hides more",
    "lossless": "where nothing may be hidden: only repetition goes",
    "rolling": "very long runs where a summary of old turns is enough; asks a model",
    "chat": "chats of people, kept short at any price; not for agents; asks a model often",
    "agent-summary": "frameworks that expect a summary in <agent_summary> tags from 120,000 tokens on",
    "structural": "agents that read again what they need: outputs become pointers; asks no model",
    "tool-digest": "agents with large outputs of which a short digest is enough; asks a model often",
    "harness": "long runs that have to stay within half of the window; asks a model",
    "deep": "runs that fill a large window: it does nothing before 60 % of it",
}
"""By preset."""
