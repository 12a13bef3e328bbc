"""Searches for bytes that break a law: `python -m tests.fuzz [--seconds N | --runs N] [LAW...]`.

For so many seconds in all, with other inputs each time; or so many inputs for each law, the same in every run. What the
first finds interesting is in `.fuzz/corpus`, where the next such run begins; bytes that break a law are written to
`.fuzz/faults`, and the exit code is 1. Put such a file into `tests/fuzz/corpus/LAW`, where a test holds the law against
it, and mend the fault.
"""

import asyncio
import json
import os
import re
import shutil
import sys
import time
from argparse import ArgumentParser
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tests.fuzz.laws import LAWS
from tests.kit.paths import ROOT

WORK, HERE = ROOT / ".fuzz", ROOT / "tests" / "fuzz"
OPTIONS = ("-timeout=30", "-rss_limit_mb=4096", "-max_len=16384", "-reload=0", "-print_final_stats=1")
_ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}
"""So that the order of a set is the same in every run."""
_STARTING = 3
"""Seconds of a process that are not the law's."""


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a law."""

    law: str
    seconds: float
    inputs: int
    coverage: int
    """Branches of the code that were taken."""
    faults: Sequence[str]
    """Files with the bytes that break it."""
    output: str = ""


async def fuzzed(law: str, seconds: float, runs: int | None) -> Found:
    own, faults = WORK / ("runs" if runs else "corpus") / law, WORK / "faults"
    if runs:  # what an earlier run has found would change what this one tries
        shutil.rmtree(own, ignore_errors=True)
    for folder in (own, faults):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(faults.glob(f"{law}-*"))
    until = (f"-runs={runs}", "-seed=1") if runs else (f"-max_total_time={round(seconds)}",)
    words = (sys.executable, "-m", "tests.fuzz.run", law, *until, *OPTIONS)
    places = (f"-dict={HERE / 'words.dict'}", f"-artifact_prefix={faults}/{law}-", str(own), str(HERE / "corpus" / law))
    begin = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *words, *places, stdin=DEVNULL, stdout=PIPE, stderr=-2, cwd=ROOT, env=_ENVIRONMENT
    )
    output = (await process.communicate())[0].decode(errors="replace")
    inputs = re.search(r"stat::number_of_executed_units:\s*(\d+)", output)
    coverage = re.findall(r"cov: (\d+)", output)
    broken = sorted(str(path.relative_to(ROOT)) for path in set(faults.glob(f"{law}-*")) - before)
    if process.returncode and not broken:
        broken = [f"exit code {process.returncode}"]
    return Found(
        law,
        time.monotonic() - begin,
        int(inputs[1]) if inputs else 0,
        int(coverage[-1]) if coverage else 0,
        broken,
        output if broken else "",
    )


async def main(seconds: float, runs: int | None, laws: Sequence[str]) -> int:
    cores = asyncio.Semaphore(os.cpu_count() or 1)
    share = max(1.0, seconds * (os.cpu_count() or 1) / len(laws) - _STARTING)

    async def one(law: str) -> Found:
        async with cores:
            found = await fuzzed(law, share, runs)
        print(
            f"{law}: {found.inputs:,} inputs, {found.coverage:,} branches, faults {list(found.faults) or 0}", flush=True
        )
        if found.faults:
            print("\n".join(found.output.splitlines()[-40:]), flush=True)
        return found

    found = await asyncio.gather(*map(one, laws))
    total, faults = sum(each.inputs for each in found), sum(len(each.faults) for each in found)
    print(f"{total:,} inputs in {sum(each.seconds for each in found):,.0f} s of fuzzing, faults: {faults}")
    rows = [{**asdict(each), "output": None} for each in found]
    (WORK / "report.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(bool(faults))


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=30, help="how long, in all")
    parser.add_argument("--runs", type=int, help="so many inputs for each law instead, the same in every run")
    parser.add_argument("laws", nargs="*", metavar="LAW", help=f"of {', '.join(LAWS)}; else all")
    words = parser.parse_args()
    if wrong := [name for name in words.laws if name not in LAWS]:
        parser.error(f"there is no law {wrong[0]!r}")
    sys.exit(asyncio.run(main(words.seconds, words.runs, words.laws or list(LAWS))))
