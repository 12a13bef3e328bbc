"""`make judges`: Narrows before judges that are not ours, each from PyPI in an environment of its own below .peers.

- compaction-conformance-kit plants rules, limits, facts, goals and preferences in a session, and looks whether they
  are in what is sent after one to five rounds.
- distil-llm's `retention` looks for numbers, names of things and errors of nine agents' runs: in what is sent, and in
  what the recall tool answers.

Both sessions are short, so the steps of a coding agent stand behind them, up to about 75,000 tokens. A run in which
Narrows made no edit does not count. Their figures are printed as they print them.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from proxy.event_loop import run_fast
from tests.kit.paths import ROOT
from tests.long.bench_peers import PEERS_FOLDER, Peer, install
from tests.long.bench_stage import Stage
from tests.long.bench_texts import agent

ROUNDS = 5
BYTES = 300_000
JUDGED = str(ROOT / "tests" / "long" / "judged.py")
JUDGES: Mapping[str, Peer] = {
    "compaction-conformance-kit": Peer(
        "compaction-conformance-kit", ("compaction-kit", "check", JUDGED + ":{variant}", "--rounds", str(ROUNDS))
    ),
    "distil-llm": Peer("distil-llm", ("python", JUDGED)),
}
READINGS = {
    ("compaction-conformance-kit", "Words"): "what a person says is never edited: anything below 100 % is a fault",
    ("compaction-conformance-kit", "Outputs"): "the same lines amid outputs: the share in sight, without a recall",
    ("compaction-conformance-kit", "Recalled"): "and with what each reference in sight gives back",
    ("distil-llm", ""): '"visible" is in sight; "recall" counts what a reference in the same output gives back',
}


def work(file: Path) -> None:
    """The steps of a coding agent in five parts that each end behind an output."""
    script = agent(BYTES, 1)
    steps = [message for message in script.messages if message["role"] != "system"]
    calls = [at for at, message in enumerate(steps) if message["role"] == "assistant"]
    cuts = [0, *(calls[len(calls) * part // ROUNDS - 1] for part in range(1, ROUNDS + 1))]
    parts = [steps[start:end] for start, end in pairwise(cuts)]
    file.write_text(json.dumps({"fields": script.fields, "rounds": parts}))


async def judged(stage: Stage, name: str, variant: str, preset: str, url: str) -> bool:
    """Prints a judge's own words about a variant of its session, and ours. False where it could not judge."""
    program, *words = (word.format(variant=variant) for word in JUDGES[name].command)
    environment = {"PATH": os.environ["PATH"], "HOME": str(stage.folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"JUDGED_URL": url, "JUDGED_WORK": str(stage.folder / "work.json"), "no_proxy": "*"}
    process = await asyncio.create_subprocess_exec(
        PEERS_FOLDER / name / "bin" / program, *words, stdout=PIPE, stderr=PIPE, env=environment
    )
    out, errors = (text.decode(errors="replace").strip() for text in await process.communicate())
    print(f"\n== {name} {variant}, preset {preset}: {READINGS[name, variant]}\n{errors[-1000:]}\n{out}")
    return bool(out)  # the kit's exit code is its verdict


async def main(presets: Sequence[str]) -> None:
    for name in JUDGES:
        await install(name, JUDGES[name])
    async with Stage.opened(sink="tests.long.judges_echo", relay=False) as stage:
        work(stage.folder / "work.json")
        results = []
        for preset in presets or ("adaptive",):
            url = (await stage.narrows("--preset", preset)).url
            results += [await judged(stage, name, variant, preset, url) for name, variant in READINGS]
    if not all(results):
        sys.exit("a judge could not judge; its errors are above")


if __name__ == "__main__":
    run_fast(main(sys.argv[1:]))
