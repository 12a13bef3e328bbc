"""The parts of a request: conversations of blocks, edits on them, tokens, identifiers, and the bytes they come from."""
