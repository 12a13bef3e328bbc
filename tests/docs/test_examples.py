"""What stands in blocks of code does what the documents say."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from proxy.console.cli import command_line
from tests.docs.documents import PAGES, POLICIES, Block, blocks, toml_blocks


@pytest.mark.parametrize("shown", [block for page in PAGES.values() for block in toml_blocks(page)])
def test_each_example_of_settings_is_one_that_narrows_check_accepts(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARROWS_UPSTREAM", "https://api.openai.com/v1")
    monkeypatch.setenv("NARROWS_ANTHROPIC_UPSTREAM", "https://api.anthropic.com")
    for name in re.findall(r'key_env = "(\w+)"', shown):
        monkeypatch.setenv(name, "a-key")
    (tmp_path / "key").write_text("a-key")
    shown = re.sub(r'key_file = "[^"]+"', f'key_file = "{tmp_path / "key"}"', shown)
    shown = re.sub(r'^ca = "[^"]+"$', "", shown, flags=re.MULTILINE)  # the reader's file
    (tmp_path / "narrows.toml").write_text(shown)
    result = CliRunner().invoke(command_line(), ["check", str(tmp_path / "narrows.toml")])
    assert result.exit_code == 0, result.output


LANGUAGES = {"python", "sh", "text", "toml", "yaml"}
"""Those of blocks: each of them but `text` is tried."""
BODY = b'{"model": "gpt-5.4", "messages": [{"role": "user", "content": "hi"}]}'


LIBRARY = [block for block in blocks("python") if block.page.parent.name == "policies"]


@pytest.mark.parametrize("block", LIBRARY, ids=str)
def test_each_example_of_the_library_does_what_it_says(block: Block) -> None:
    names = {"body": BODY}
    exec(block.text, names)  # noqa: S102 - it is ours
    for expression in re.findall(r"`(compact\([^`]+\))`", POLICIES):
        eval(expression, names)  # noqa: S307 - likewise
    for module, name in re.findall(r"`(narrows(?:\.\w+)+)\.(\w+)[\[(][^`]*`", POLICIES):
        assert hasattr(import_module(module), name)


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_each_example_in_yaml_can_be_read(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_each_block_is_of_a_kind_that_is_tried(page: Path) -> None:
    fences = re.findall(r"^ *```(.*)$", PAGES[page], re.MULTILINE)
    assert {fence.split(" ")[0] for fence in fences[::2]} <= LANGUAGES
    assert not any(fences[1::2])


@pytest.mark.parametrize("block", [*blocks("sh"), *blocks("text")], ids=str)
def test_no_command_in_the_docs_shows_a_password(block: Block) -> None:
    """Whoever is on the machine reads it in `ps`, and it stays in the shell's history."""
    assert not re.search(r"--[\w-]+[ =]\S*://[^\s/]*:[^\s/]*@|redis-cli.* -a |--requirepass", block.text)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_nothing_is_left_to_fill_in(page: Path) -> None:
    # what `make figures` and `make bench` measure stands between marks
    text = re.sub(r"^<!-- (?:figures: [a-z-]+|bench|end) -->$", "", PAGES[page], flags=re.MULTILINE)
    assert not re.search(r"<!--|TODO|FIXME|XXX", re.sub(r"`<!-- [^`]* -->`", "", text))
