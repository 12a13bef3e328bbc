"""Sessions made by rule of the shape in which files are read in one turn and edited one by one: fixed in advance. Those
with even seeds are for choosing, those with odd seeds for judging; each half has more than 100 edits.
"""

import json
from collections.abc import Sequence

from proxy.lab.replay.recorded import Session, session_of
from tests.kit.editing import KIND, editing

SESSIONS: Sequence[tuple[int, int, int]] = (
    *((1, 10, 5), (2, 10, 6), (3, 10, 8), (4, 10, 10), (5, 10, 7), (6, 10, 9)),
    *((7, 30, 5), (8, 30, 6), (9, 30, 8), (10, 30, 10), (11, 30, 7), (12, 30, 9), (13, 30, 6), (14, 30, 8)),
    *((15, 60, 5), (16, 60, 6), (17, 60, 8), (18, 60, 10), (19, 60, 7), (20, 60, 9)),
)
"""Of each its seed, its turns of edits and its files."""


def edit_sessions(odd: bool) -> list[Session]:
    """One half of them, as `narrows replay` reads them."""
    return [
        session_of(json.dumps(editing(seed, turns, files)).encode(), f"{KIND}-{turns}-{seed}", KIND)
        for seed, turns, files in SESSIONS
        if seed % 2 == odd
    ]
