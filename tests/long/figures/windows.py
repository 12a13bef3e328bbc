"""`make windows`: what summaries do in small windows and in large ones, written into policies/README.md.

Law: every figure comes from real replays of generated sessions, at the listed prices of the model and of its small
sibling, which writes the summaries.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Sequence
from functools import cache

from proxy.lab.generators.chats import chat
from proxy.lab.generators.loops import generated
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, session_of
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all
from tests.long.figures.runs import ROOT
from tests.long.figures.tables import put, table

WINDOWS = {"4k": 4_000, "8k": 8_000, "16k": 16_000, "32k": 32_000, "128k": 128_000, "1M": 1_000_000}
MODEL, SEEDS, TURNS, ANSWERS, LOOP = "gpt-5.4", (201, 202), 90, (260, 780), 0
ON_CHATS, ON_LOOPS = ("chat", "rolling", "adaptive", "harness", "deep", "agent-summary"), ("rolling", "adaptive")
FILE, MARKS = ROOT / "policies" / "README.md", "windows"


@cache
def sessions(answer: int) -> Sequence[Session]:
    """Chats with answers of so many tokens, one for each seed; else a loop of reads."""
    bodies = [generated("read-loop", SEEDS[0])] if answer == LOOP else [chat(seed, TURNS, answer) for seed in SEEDS]
    return [session_of(json.dumps(body).encode(), "generated", "generated") for body in bodies]


def measure(answer: int, preset: str, window: int) -> list[Report]:
    """Replay such sessions under a preset, in a window of so many tokens."""
    gc.collect()
    return asyncio.run(replay_all(sessions(answer), Options(prices=(MODEL,), preset=preset, window=window)))


def text_of(reports: Sequence[Report]) -> str:
    """A cell of the table: the range of the first requests, most moves, all summaries, and the highest bill."""
    summaries = [report.summaries for report in reports]
    firsts = sorted({each.first_asked.request for each in summaries if each.first_asked})
    first = "-".join(str(each) for each in dict.fromkeys((firsts[0], firsts[-1]))) if firsts else "none"
    moves = max(100 * report.prefix_changes / report.requests for report in reports)
    paid, used = sum(each.calls for each in summaries), sum(each.adopted for each in summaries)
    return f"{first} / {moves:.0f} / {paid}, {used} / {max(report.input_bill.ratio for report in reports):.2f}"


def windows() -> str:
    """The table, measured: a row for each kind of session and preset, a column for each window."""
    gc.disable()  # a third of the time of a replay
    rows = []
    for answer, presets in (*((answer, ON_CHATS) for answer in ANSWERS), (LOOP, ON_LOOPS)):
        for preset in presets:
            cells = [measure(answer, preset, window) for window in WINDOWS.values()]
            assert not any(report.faults for reports in cells for report in reports)
            kind = f"chat, answers of {answer}" if answer else "read loop"
            rows.append((kind, f"`{preset}`", *map(text_of, cells)))
            print(f"windows: {kind}, {preset}", file=sys.stderr, flush=True)
    return table(("session", "preset", *WINDOWS), rows, left=2)


if __name__ == "__main__":
    FILE.write_text(put(FILE.read_text(encoding="utf-8"), {MARKS: windows()}), encoding="utf-8")
