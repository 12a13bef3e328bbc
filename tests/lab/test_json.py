"""What `--json` prints is an interface: the keys and the values of two commands, compared with a golden file each.

NARROWS_GOLDEN=write writes the files anew, after a change that is meant.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from proxy.console import cli
from tests.console.test_cli import SHIPPED

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("NARROWS_GOLDEN") == "write"  # read at import: the tests themselves see no NARROWS_ setting
COMMANDS = {
    "explain": ["explain", SHIPPED],
    "replay": [
        *("replay", SHIPPED, "--prices", "gpt-5.4", "--refetch", "1"),
        *("--preset", "coding-agent", "--preset", "structural"),
    ],
}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        cli.main(words)
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


@pytest.mark.parametrize("command", COMMANDS)
def test_the_json_of_a_command_is_what_it_was(capsys: pytest.CaptureFixture[str], command: str) -> None:
    values = printed(capsys, *COMMANDS[command], "--json")
    golden = GOLDEN / f"{command}.json"
    if WRITE:
        golden.write_text(json.dumps(values, indent=1) + "\n")
    expected = json.loads(golden.read_text())
    assert json.dumps(values, indent=1) == json.dumps(expected, indent=1)  # the order of keys, too
