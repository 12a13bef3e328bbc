"""`narrows check`: what a file says, and what is wrong with it."""

from pathlib import Path

import pytest

from proxy.console.cli import main

GOOD = """
auth = "keys"
[[upstreams]]
name = "local"
url = "http://127.0.0.1:8000/v1"
models = ["qwen*"]
[[keys]]
name = "alice"
sha256 = "{digest}"
rpm = 60
models = ["qwen*"]
"""


def checked(file: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    file.write_text(text)
    with pytest.raises(SystemExit) as left:
        main(["check", str(file)])
    return int(str(left.value.code or 0)), *capsys.readouterr()


def test_a_file_that_works_is_described_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "made.db"
    monkeypatch.setenv("NARROWS_STORE", f"sqlite:///{store}")
    code, told, trouble = checked(tmp_path / "n.toml", GOOD.format(digest="ab" * 32), capsys)
    assert (code, trouble, store.exists()) == (0, "", False)
    assert "upstream local: http://127.0.0.1:8000/v1 (all APIs; qwen*), with the client's credential" in told
    assert "key alice: models qwen*; rpm 60" in told
    assert "ab" * 32 not in told
    assert "auth keys" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('upstream = "https://a/v1"\nmode = "sometimes"', "mode: "),
        ('upstream = "https://a/v1"\nstore = "nosuch://x"', "store: there is no store nosuch://; give a URL"),
        ('upstream = "https://a/v1"\n[models.m]\nnonsense = 1', "models: "),
        (
            'auth = "keys"\n[[keys]]\nname = "a"\nsha256 = "nrw_x"',
            "keys.0.sha256: give the SHA-256 that `narrows keys new`",
        ),
        (
            f'[[keys]]\nname = "a"\nsha256 = "{64 * "a"}"\nexpires = 2027-01-31',
            "keys.0.expires: Input should have timezone info",
        ),
        ('mode = "on"', "upstream: say where requests go"),
        ("upstream = ", "config: "),
    ],
)
def test_what_cannot_work_is_named(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, trouble = checked(tmp_path / "n.toml", text, capsys)
    assert (code, told) == (2, "")
    assert trouble.startswith(f"narrows: {words}")
