"""Where the project's own files are, and the recorded sessions beside it."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT.parent / "shared" / "transcripts"
"""Recorded sessions of agents. They are not part of the project: a test that needs them skips where they are absent."""


def revision() -> str:
    """The commit whose files these are."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT).stdout.strip() or "unknown"
