"""Coverage-guided fuzzing: `laws` says what must hold of any bytes, `python -m tests.fuzz` searches for bytes of which
it does not hold, and `test_corpus` holds them against the bytes in `corpus/`, which were found interesting."""
