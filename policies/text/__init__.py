"""How a shortened text reads: stubs, excerpts, sections of files, transcripts for a summarizer."""
