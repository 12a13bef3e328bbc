"""`narrows doctor`: what each answer of an upstream means, and each state of the store and the settings."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.console.doctor import examine
from tests.console.test_cli import told
from tests.kit.upstream import Asked, ScriptedUpstream, says

LIST = b'{"data": [{"id": "gpt-5.4"}, {"id": "claude-opus-5-5"}]}'
LONG_AGO = "Mon, 02 Jan 2023 00:00:00 GMT"


def reply(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


async def looked_at(
    upstream: str, tmp_path: Path, anthropic: str = "", **environment: str
) -> dict[str, tuple[str, str]]:
    """The status and the text of each finding by what it is about; of several about the same, the worst."""
    flags = {"upstream": upstream, "store": f"sqlite:///{tmp_path}/narrows.db", "port": 0}
    flags |= {"anthropic_upstream": anthropic} if anthropic else {}
    worst: dict[str, tuple[str, str]] = {}
    for each in await examine(flags, environment):
        former = worst.get(each.about, ("", ""))[0]
        if ("", "ok", "warn", "fail").index(each.status) > ("", "ok", "warn", "fail").index(former):
            worst[each.about] = each.status, each.text
    return worst


async def test_all_is_well_and_no_key_is_shown(tmp_path: Path) -> None:
    async with ScriptedUpstream(says(reply(200, LIST))) as upstream:
        found = await looked_at(upstream.url, tmp_path, OPENAI_API_KEY="sk-secret")
    assert {status for status, _ in found.values()} == {"ok"}
    assert found.keys() == {"versions", "settings", "port", "upstream", "key", "store"}
    (asked,) = upstream.seen
    assert (asked.line, asked.one("authorization")) == ("GET /v1/models HTTP/1.1", "Bearer sk-secret")
    assert "sk-secret" not in str(found)
    assert "2 models" in found["upstream"][1]


@pytest.mark.parametrize(
    ("answer", "key", "status", "sentence"),
    [
        (reply(401), "sk-1", "fail", "refuses the key in OPENAI_API_KEY (401)"),
        (reply(401), "", "ok", "requires a key (401)"),
        (reply(404), "", "warn", "the path in `upstream` is wrong"),
        (reply(200, b"<html>"), "", "warn", "usually ends in /v1"),
        (reply(301, b"", "Location: https://b/v1"), "", "fail", "redirects to another address"),
        (reply(429), "", "warn", "too many requests"),
        (reply(503), "", "warn", "try again later"),
        (b"no HTTP\r\n\r\n", "", "fail", "not HTTP"),
    ],
)
async def test_what_an_answer_of_the_upstream_means(
    answer: bytes, key: str, status: str, sentence: str, tmp_path: Path
) -> None:
    async with ScriptedUpstream(says(answer)) as upstream:
        found = await looked_at(upstream.url, tmp_path, OPENAI_API_KEY=key)
    assert found["upstream"][0] == status
    assert sentence in found["upstream"][1]
    assert found["store"][0] == "ok"


async def test_an_address_without_its_v1_is_told_so(tmp_path: Path) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(200, LIST) if asked.line.startswith("GET /v1/models") else reply(404))

    async with ScriptedUpstream(script) as upstream:
        found = await looked_at(upstream.url.removesuffix("/v1"), tmp_path)
    assert found["upstream"] == (
        "fail",
        f"{upstream.url.removesuffix('/v1')} is not the API, but {upstream.url} is; set `upstream` to that",
    )


async def test_each_upstream_has_a_key_of_its_own_and_a_clock(tmp_path: Path) -> None:
    async with ScriptedUpstream(says(reply(200, LIST, f"Date: {LONG_AGO}"))) as upstream:
        anthropic = f"{upstream.url.removesuffix('/v1')}/anthropic"
        keys = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2"}
        found = await looked_at(upstream.url, tmp_path, anthropic, **keys)
    openai, claude = upstream.seen
    assert (openai.one("authorization"), openai.all("x-api-key")) == ("Bearer sk-1", [])
    assert (claude.one("x-api-key"), claude.all("authorization")) == ("sk-2", [])
    assert claude.line == "GET /anthropic/v1/models HTTP/1.1"
    assert found["clock"][0] == "warn"
    assert "ahead of the upstream's" in found["clock"][1]


async def test_a_store_that_cannot_be_used_fails(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "narrows.db").write_bytes(b"no database" * 500)
    found = await looked_at(f"http://127.0.0.1:{free_port}/v1", tmp_path)
    assert found["store"][0] == found["upstream"][0] == "fail"
    assert "is it up?" in found["upstream"][1]


def test_as_a_command_it_ends_with_1_where_something_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/narrows.db")
    code, out, _ = told(capsys, "doctor", *store)
    assert code == 1
    assert "fail  upstream  `upstream` is not set; say where requests go" in out
    code, out, _ = told(capsys, "doctor", *store, "--preset", "x", "--json")
    findings: Any = json.loads(out)
    assert (code, [each["about"] for each in findings]) == (1, ["versions", "settings"])
    assert findings[1]["text"].startswith("preset: there is no preset 'x'")


def test_check_says_what_settings_mean_or_what_cannot_work(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "narrows.toml"
    store = tmp_path / "none" / "x.db"
    file.write_text(f'upstream = "https://host/v1"\nstore = "sqlite:///{store}"\n')
    code, out, _ = told(capsys, "check", str(file))
    assert code == 0
    assert "upstream default: https://host/v1 (all APIs; all models), with the client's credential" in out
    assert not store.parent.exists()
    file.write_text(f'upstream = "https://host/v1"\nstore = "sqlite:///{store}"\ntools = "defer"\n')
    assert (
        "tools: definitions are left out until the model looks for them, unless a rule"
        in told(capsys, "check", str(file))[1]
    )
    file.write_text('upstream = "https://host/v1"\n[models.m]\ninput = -1\n')
    code, _, err = told(capsys, "check", str(file))
    assert code == 2
    assert "narrows: models: " in err
