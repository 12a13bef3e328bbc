"""What a new output of a hundred kilobytes costs in the plan of one request of the default, by its shape.

`python -m tests.long.bench_outputs` prints the processor time of a request with the output, the best of five, less that
of the same request without it.
"""

import time

from policies.compact import compact
from policies.presets import PRESETS
from tests.kit.histories import body_of
from tests.kit.talk import PREFIX_PRICES, ROOMY, runs, user
from tests.long.bench_texts import large_outputs

ASKED = "Look at src/part_3.py and total_77, please."
_TIMES = 5


def milliseconds(output: str) -> float:
    """The best of some requests that end with the output, each time with another last line."""
    reads = [message for i in range(6) for message in runs(f"cat src/part_{i}.py", f"src/part_{i}.py\n" * 20)]
    best = float("inf")
    for i in range(_TIMES):
        body = body_of([user(ASKED), *reads, *runs("make all", f"{output}{' ' * i}")])
        start = time.process_time()
        compact(body, policies=PRESETS["adaptive"], prices=PREFIX_PRICES, budget=ROOMY, recall=True)
        best = min(best, 1_000 * (time.process_time() - start))
    return best


def main() -> None:
    milliseconds("")  # the vocabulary is loaded
    nothing = milliseconds("")
    for shape, output in large_outputs().items():
        print(f"{shape:20} {milliseconds(output) - nothing:7.1f} ms")


if __name__ == "__main__":
    main()
