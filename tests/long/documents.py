"""The documents once more, part of `make laws`: ten minutes to a first policy as CONTRIBUTING.md and policies/README.md
say, in a copy of the repository; and the shell blocks that take seconds.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import PAGES, POLICIES, Block
from tests.docs.shell import LONG, paste
from tests.kit.paths import ROOT

FILE = '''\
"""Old outputs of tools keep their first line."""

from collections.abc import Iterator

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.parameters import parameter
from policies.rules.base import ConfiguredPolicy, large_outputs, policy
from policies.text.stubs import way_back


@policy
class First(ConfiguredPolicy):
    why = "an old output: its first line stays"

    keep: int = parameter("turns", "newest turns that stay")
    over: int = parameter("tokens", "longer outputs are shortened")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        """The first lines of outputs that leave the window with this step."""
        for i in large_outputs(conversation, context, context.aged(conversation, self.keep), self.over):
            block = conversation.blocks[i]
            rest = way_back(context.kind(conversation, i), context.ref(conversation, i))
            yield Replace(block.anchor, f"{block.text.splitlines()[0]}\\n{rest}", "first")
'''
PRESET = '    "brief": Preset((_DEDUPE, _COLLAPSE, First(keep=1, over=250), _LAST), "my first"),\n'
HISTORY = """\
{"keep": 1, "over": 20}
{"user": "go"}
{"calls": [["bash", {"command": "cat a.py"}]]}
{"result": [["row {} of the table", 30]]}
{"calls": [["bash", {"command": "ls"}]]}
"""
OTHERS = {"long.txt": HISTORY, "short.txt": HISTORY.replace("20", "2000"), "new.txt": HISTORY.replace("1", "5", 1)}
NARROWS = ".venv/bin/python -m proxy.console.cli"
ROW = "| `first` | outputs keep their first line | after a turn |"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A clone with its environment ready."""
    place = tmp_path / "narrows"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, place, ignore=hidden)
    (place / ".venv").symlink_to(sys.prefix)
    (place / ".ci").symlink_to(ROOT / ".ci")
    return place


def run(copy: Path, command: str, code: int = 0) -> str:
    """What a command prints in the copy; it ends with this code."""
    environment = {name: value for name, value in os.environ.items() if name != "EXAMPLES"}
    environment |= {"PYTHONPATH": str(copy)}
    done = subprocess.run(["bash", "-c", command], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_first_policy(copy: Path) -> None:
    section = POLICIES[POLICIES.index("\n## Adding a policy") :].split("\n## ")[1]
    golden, documents = re.findall(r"`((?:NARROWS_GOLDEN=write )?\.venv/bin/pytest [^`]+)`", section)
    assert re.findall(r"`(make test-fast|narrows replay [^`]+)`", PAGES[Path("CONTRIBUTING.md")])

    (copy / "policies/rules/first.py").write_text(FILE)
    presets = copy / "policies/presets.py"
    replace(
        presets, "from policies.rules.offload", "from policies.rules.first import First\nfrom policies.rules.offload"
    )
    replace(presets, '    "rolling": Preset(\n', f'{PRESET}    "rolling": Preset(\n')

    (copy / "tests/golden/first").mkdir()
    for name, text in OTHERS.items():
        (copy / "tests/golden/first" / name).write_text(text)
    run(copy, golden)
    edits = "step 2: first replaces 2.content\n  | row 0 of the table\n  | [narrows: rest: ref "
    assert edits in (copy / "tests/golden/first/long.txt").read_text()
    assert (copy / "tests/golden/first/short.txt").read_text().endswith("-\nnothing\n")

    printed = run(copy, documents, code=1)
    readme = copy / "policies" / "README.md"
    replace(readme, "\n| `abridge` | long", f"\n{ROW}\n| `abridge` | long")
    for table in re.findall(r"put this into policies/README\.md:\n((?:E +\|.*\n)+)", printed):
        rows = re.sub("^E +", "", table, flags=re.MULTILINE)
        text = readme.read_text(encoding="utf-8")
        start = text.index(rows.splitlines()[0])
        readme.write_text(text[:start] + rows.rstrip() + text[text.index("\n\n", start) :], encoding="utf-8")
    run(copy, ".venv/bin/python -m tests.docs.reference")
    run(copy, f"{documents} --last-failed")

    run(copy, "make -o .venv/.runtime -o .venv/.ready test-fast")
    assert "write_once" in run(copy, f"{NARROWS} replay proxy/lab/sessions/write_once.json --preset brief")


@pytest.mark.parametrize("block", LONG, ids=str)
async def test_each_shell_block_that_takes_seconds_does_what_it_says(block: Block, tmp_path: Path) -> None:
    await paste(block, tmp_path)
