"""`make neighbours-test`: a wheel of Narrows beside others, each set of packages with it in one new environment.

Nothing may be in conflict, both must be imported into one process, and a request goes from the neighbour's own client
through the Narrows that is installed there. Needs a package index; environments are made below a temporary folder.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from proxy.lab.provider import Provider
from proxy.lab.provider.listener import start
from tests.kit.paths import ROOT

BIN = Path(sys.executable).parent
NEIGHBOURS = {
    "litellm[proxy]": (
        "import litellm, litellm.proxy.proxy_server\n"
        "reply = litellm.completion(model='openai/gpt-5.4', messages=[{'role': 'user', 'content': 'hello'}])\n"
        "print(reply.choices[0].message.content)"
    ),
    "langchain langchain-openai langgraph": (
        "import langchain, langgraph.graph, langchain_openai\n"
        "print(langchain_openai.ChatOpenAI(model='gpt-5.4').invoke('hello').content)"
    ),
    "openai-agents": (
        "import agents\nagents.set_tracing_disabled(True)\n"
        "print(agents.Runner.run_sync(agents.Agent('a', model='gpt-5.4'), 'hello').final_output)"
    ),
    "pydantic-ai": ("import pydantic_ai\nprint(pydantic_ai.Agent('openai-chat:gpt-5.4').run_sync('hello').output)"),
}
"""Packages, and a request by them as a program of Python."""
TOGETHER = "import narrows.policies.compact, narrows.proxy.app, narrows.proxy.console.cli\n"


def run(words: Sequence[str | Path], **environment: str) -> str:
    """What a program prints. Raises CalledProcessError, after what it printed where it failed."""
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    done.check_returncode()
    return done.stdout


def beside(packages: str, program: str, wheel: Path, folder: Path, url: str) -> None:
    """Install, look, ask."""
    python = folder / "bin" / "python"
    run([BIN / "uv", "venv", "--quiet", "--clear", "--python", sys.executable, folder])
    run([BIN / "uv", "pip", "install", "--quiet", "--python", python, wheel, *packages.split()])
    run([BIN / "uv", "pip", "check", "--python", python])
    home = {"HOME": str(folder), "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    said = run([folder / "bin" / "narrows", "--version"], **home).splitlines()[0]
    words = (folder / "bin" / "narrows", "run", "--upstream", url, "--", python, "-c", TOGETHER + program)
    assert run(words, **home).strip(), "an empty reply"
    listed = json.loads(run([BIN / "uv", "pip", "list", "--quiet", "--format", "json", "--python", python]))
    versions = {each["name"]: each["version"] for each in listed}
    names = [name.partition("[")[0] for name in packages.split()]
    print(said, "beside", ", ".join(f"{name} {versions[name]}" for name in (*names, "openai")), flush=True)


def built(folder: Path) -> Path:
    """The wheel."""
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT])
    (wheel,) = folder.glob("*.whl")
    return wheel


async def main(chosen: Sequence[str]) -> None:
    provider = Provider(prices_for, Counter())
    async with await start(provider) as running:
        with TemporaryDirectory() as folder:
            wheel = built(Path(folder))
            for packages, program in NEIGHBOURS.items():
                if chosen and not any(packages.startswith(name) for name in chosen):
                    continue
                before = len(provider.requests)
                await asyncio.to_thread(beside, packages, program, wheel, Path(folder) / "beside", running.url)
                assert len(provider.requests) > before, "the request did not arrive"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
