"""`narrows keys`: what it prints once, what it stores, and what it refuses."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from proxy.addons.access.keys import digest_of, is_sound
from proxy.config import KeyRow
from proxy.memory import open_store
from tests.console.test_cli import told
from tests.kit.settings import settings_with

OPTIONS = (
    *("--tenant", "team", "--upstream", "openai", "--model", "gpt-5*", "--model", "o3", "--preset", "chat"),
    *("--mode", "observe", "--rpm", "3", "--tpm", "1000", "--concurrency", "2", "--usd-per-day", "0.5"),
    *("--expires", "2027-01-31"),
)
FIELDS = {
    "tenant": "team",
    "upstreams": ("openai",),
    "models": ("gpt-5*", "o3"),
    "presets": ("chat",),
    "mode": "observe",
    "rpm": 3,
    "tpm": 1000,
    "concurrency": 2,
    "usd_per_day": 0.5,
    "expires": datetime(2027, 1, 31, tzinfo=UTC),
}
UPSTREAM = '[[upstreams]]\nname = "openai"\nurl = "https://api.openai.com/v1"\n'


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that `serve` has made."""
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_url')}?prefix={tmp_path.name}"
    name = f"sqlite:///{tmp_path}/narrows.db"

    async def make() -> None:
        store = open_store(name)
        await store.open()
        await store.close()

    asyncio.run(make())
    return name


def test_a_new_key_is_printed_with_the_row_that_the_file_wants(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = told(capsys, "keys", "new", "alice", *OPTIONS)
    key, row = out.split()[0], out[out.index("[[keys]]") :]
    assert (code, err, is_sound(key), out.count(key)) == (0, "", True, 1)
    (tmp_path / "narrows.toml").write_text(f'auth = "keys"\n{UPSTREAM}{row}')
    settings = settings_with(["--config", str(tmp_path / "narrows.toml")])
    assert settings.keys == (KeyRow.model_validate({"name": "alice", "sha256": digest_of(key), **FIELDS}),)


def test_x4_a_key_of_the_store_is_printed_once_and_never_stored(
    capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path
) -> None:
    code, out, _ = told(capsys, "keys", "add", "alice", *OPTIONS, "--store", url)
    key = out.split()[0]
    assert (code, is_sound(key)) == (0, True)
    assert told(capsys, "keys", "add", "bob", "--expires", "90d", "--store", url)[0] == 0
    code, listed, _ = told(capsys, "keys", "list", "--store", url)
    assert [line.split()[:3] for line in listed.splitlines()[2:4]] == [
        ["alice", "store", "team"],
        ["bob", "store", "bob"],
    ]
    assert "alice may use only: models gpt-5* o3, upstreams openai, presets chat, mode observe" in listed
    code, as_json, _ = told(capsys, "keys", "list", "--json", "--store", url)
    alice, bob = json.loads(as_json)["keys"]
    assert (alice["sha256"], alice["models"], bob["in"]) == (digest_of(key), ["gpt-5*", "o3"], "store")
    assert key not in listed + as_json
    assert not [file for file in tmp_path.glob("narrows.db*") if key.encode() in file.read_bytes()]
    code, _, err = told(capsys, "keys", "add", "alice", "--store", url)
    assert (code, "revoke it" in err) == (2, True)
    assert told(capsys, "keys", "revoke", "alice", "--store", url)[0] == 0
    assert told(capsys, "keys", "revoke", "alice", "--store", url)[0] == 2
    assert [each["name"] for each in json.loads(told(capsys, "keys", "list", "--json", "--store", url)[1])["keys"]] == [
        "bob"
    ]


def test_a_row_of_the_file_is_listed_before_one_of_the_store_and_is_not_made_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def fill() -> None:
        store = open_store(f"sqlite:///{tmp_path}/narrows.db")
        await store.open()
        await store.add_key(KeyRow(name="alice", sha256=64 * "a"))
        await store.close()

    asyncio.run(fill())
    row = f'auth = "keys"\nstore = "sqlite:///{tmp_path}/narrows.db"\n[[keys]]\nname = "alice"\nsha256 = "{64 * "b"}"\n'
    (tmp_path / "narrows.toml").write_text(row + UPSTREAM)
    file = ("--config", str(tmp_path / "narrows.toml"))
    listed = json.loads(told(capsys, "keys", "list", "--json", *file)[1])["keys"]
    assert [(each["in"], each["sha256"][0]) for each in listed] == [("file", "b")]
    code, _, err = told(capsys, "keys", "add", "alice", *file)
    assert (code, "the file has a key" in err) == (2, True)
    code, _, err = told(capsys, "keys", "add", "bob", "--upstream", "opnai", *file)
    assert (code, "there is no upstream 'opnai' (did you mean openai?)" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["new"], "name the key: narrows keys new NAME"),
        (["list", "alice"], "list takes no NAME"),
        (["revoke", "alice", "--rpm", "3"], "revoke it and add another"),
        (["new", "a b"], "name: give 1 to 64 letters"),
        (["new", "local"], "local is the tenant of this machine"),
        (["new", "alice", "--rpm", "0"], "rpm: "),
        (["new", "alice", "--expires", "soon"], "write 90d, 2027-01-31"),
        (["add", "alice", "--store", "sqlite:////nowhere/narrows.db"], "there is no file"),
    ],
)
def test_what_cannot_be_meant_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], advice: str) -> None:
    code, out, err = told(capsys, "keys", *words)
    assert (code, out, advice in err) == (2, "", True), err
