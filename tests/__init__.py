"""The tests. The name of a test refers to a behaviour in BEHAVIOURS.md (`test_r3_...`) or to a law of
`policies/__init__.py` (`test_law_2_...`). README.md says how to run them and what each folder tests.
"""

import os

_SHARE = int(os.environ.get("EXAMPLES", "10"))
"""The percentage of the generated examples that is tried: `make laws` tries all."""


def examples(most: int) -> int:
    """The number of examples that a property is tried with, of at most so many."""
    return max(5, most * _SHARE // 100)
