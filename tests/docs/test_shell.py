"""Each shell block of the documents is run, or says why not."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.money.catalog import prices_for
from proxy.lab.provider import Provider, start
from tests.docs.shell import NEEDS, Block, Reader, blocks
from tests.kit.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
RUN = [block for block in blocks("sh") if not block.marks]


@pytest.fixture(scope="module")
def forks() -> Iterator[str]:
    """The socket of a process that has loaded all commands."""
    with tempfile.TemporaryDirectory(prefix="narrows-") as folder:
        words = [sys.executable, "-m", "tests.docs.narrows_by_fork", f"{folder}/s"]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                yield f"{folder}/s"
            finally:
                process.kill()


@pytest.mark.parametrize("block", RUN, ids=str)
async def test_each_shell_block_does_what_it_says(block: Block, tmp_path: Path, forks: str) -> None:
    async with await start(Provider(prices=prices_for, count=len)) as upstream:
        print(await Reader(tmp_path, upstream.url, forks).paste(block))


@pytest.mark.parametrize("block", [block for block in blocks("sh") if block.marks], ids=str)
def test_a_shell_block_that_is_not_run_says_why(block: Block) -> None:
    need, _, word = block.marks.partition("=")
    assert need == "needs"
    assert word in NEEDS
    subprocess.run(["bash", "-n", "-c", block.text], check=True)
    for target in re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
