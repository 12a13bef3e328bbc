"""The tests. A name tells what a test shows: `law_N` is a law of `policies/__init__.py`; a letter and a number is a
behaviour: c counting, v validity, s stability, r recall, m summaries, t transport, x safety, f faults of the store.
"""
