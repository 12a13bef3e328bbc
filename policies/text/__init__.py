"""How a shortened text reads: stubs, excerpts, transcripts for a summarizer, checks of its answers."""
