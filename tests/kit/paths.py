"""Where the project's own files are, and the recorded sessions beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT.parent / "shared" / "transcripts"
"""Recorded sessions of agents. They are not part of the project: a test that needs them skips where they are absent."""
