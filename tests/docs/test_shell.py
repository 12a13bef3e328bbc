"""Each shell block of the documents is run, or says why not."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.documents import Block, blocks
from tests.docs.shell import NEEDS, SHORT, paste
from tests.kit.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", SHORT, ids=str)
async def test_each_shell_block_does_what_it_says(block: Block, tmp_path: Path) -> None:
    await paste(block, tmp_path)


@pytest.mark.parametrize("block", [block for block in blocks("sh") if block.marks], ids=str)
def test_a_shell_block_that_is_not_run_says_why(block: Block) -> None:
    need, _, word = block.marks.partition("=")
    assert need == "needs"
    assert word in NEEDS
    subprocess.run(["bash", "-n", "-c", block.text], check=True)
    for target in re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
