"""Which preset is for whom, and what it costs: what `narrows presets` says of each in a line.

The figures are those of policies/README.md, measured by `make figures`; a test compares them.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredPreset:
    """What a preset cost and left in sight in recorded sessions, at the prices of gpt-5.4."""

    long_bill_ratio: float
    """The mean input bill of long sessions, divided by that without Narrows."""
    short_bill_ratio: float
    worst_bill_ratio: float
    """Of any session, at its end."""
    share_visible: float
    """Of what later turns used, what stood in the prompt."""
    model_calls: int
    """For summaries and digests, in all of these sessions."""


FOR_WHOM: Mapping[str, tuple[str, MeasuredPreset]] = {
    "coding-agent": (
        "agents with tools, where no model may ever be asked for a summary",
        MeasuredPreset(0.60, 0.86, 1.07, 0.983, 0),
    ),
    "adaptive": (
        "the default, for nearly everybody: agents, and chats that grow long",
        MeasuredPreset(0.60, 0.86, 1.07, 0.983, 0),
    ),
    "gentle": (
        "agents whose own prose and old turns have to stay whole",
        MeasuredPreset(0.82, 0.84, 1.07, 0.987, 0),
    ),
    "eager": (
        "long runs of agents that can read files again: cheaper, and hides more",
        MeasuredPreset(0.55, 0.81, 1.07, 0.976, 0),
    ),
    "lossless": (
        "where nothing may be hidden: only repetition goes",
        MeasuredPreset(0.91, 0.90, 1.05, 1.000, 0),
    ),
    "rolling": (
        "very long runs where a summary of old turns is enough; asks a model",
        MeasuredPreset(0.49, 0.84, 1.07, 0.954, 40),
    ),
    "chat": (
        "chats of people, kept short at any price; not for agents; asks a model often",
        MeasuredPreset(0.57, 0.87, 1.10, 0.899, 441),
    ),
    "agent-summary": (
        "frameworks that expect a summary in <agent_summary> tags from 120,000 tokens on",
        MeasuredPreset(1.00, 1.01, 1.05, 0.999, 2),
    ),
    "structural": (
        "agents that read again what they need: outputs become pointers; asks no model",
        MeasuredPreset(0.75, 0.80, 1.00, 0.957, 0),
    ),
    "tool-digest": (
        "agents with large outputs of which a short digest is enough; asks a model often",
        MeasuredPreset(0.87, 1.00, 1.15, 0.989, 238),
    ),
    "harness": (
        "long runs that have to stay within half of the window; asks a model",
        MeasuredPreset(0.54, 0.98, 1.08, 0.964, 83),
    ),
    "deep": (
        "runs that fill a large window: it does nothing before 60 % of it",
        MeasuredPreset(1.00, 1.01, 1.05, 1.000, 0),
    ),
}
"""By preset."""
