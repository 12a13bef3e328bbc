"""The tests. A name tells what a test shows: `law_N` is a law of `policies/__init__.py`; a letter and a number is a
behaviour: c counting, v validity, s stability, r recall, m summaries, t transport, x safety, f faults of the store.
"""

import os

_SHARE = int(os.environ.get("EXAMPLES", "10"))
"""How many of the generated examples are tried, in percent: `make laws` tries all."""


def examples(most: int) -> int:
    """How many examples a property is tried with."""
    return max(5, most * _SHARE // 100)
