"""Recordings: sessions in files, without credentials and chosen fields; bounded, deleted with their conversation."""

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.addons.archive.recordings import Recordings, Redaction
from proxy.config import Settings
from proxy.console.cli import command_line
from proxy.console.serve import greeting
from proxy.lab.replay.recorded import load
from tests.addons.archive.test_logged_requests import CANARY, FORMS_OF_CANARY, agent, files_below
from tests.kit.apis import Api, answered
from tests.kit.recalling import REPORT, SECOND, hiding
from tests.kit.speaking import speaking
from tests.kit.stage import Stage, working
from tests.kit.visiting import NOBODY, page

HERE = ("x-narrows-conversation", "it")
SESSION = working(4, 20)

pytestmark = pytest.mark.usefixtures("patient")


async def test_m10_a_recording_is_the_session_that_the_client_had(stage: Stage, tmp_path: Path, api: Api) -> None:
    folder = tmp_path / "recordings"
    app = await stage.start(record=folder)
    stage.provider.answer = agent(4)
    async with speaking(api, app.base_url) as speaker:
        messages = hiding(REPORT, SECOND)
        for turn in range(4):
            heard = await speaker.ask(messages, bool(turn % 2))
            whole = [*messages, heard.message()]
            messages += answered(heard.message(), *[REPORT] * 3)
    await app.close(1)
    (file,) = files_below(folder)  # one conversation, one file, however often it grew
    session, body = load(file), json.loads(json.dumps(api.body(whole)))
    assert (session.dialect, len(session.messages)) == (api.dialect, len(body[api.history]))
    assert [*session.tools] == body["tools"]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_x4_no_credential_and_no_chosen_field_is_in_a_recording(
    stage: Stage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recordings"
    redact = {"messages.*.content": r"card \d{4}", "user": "", "tools.0.function.description": "it"}
    app = await stage.start(record=folder, record_redact=redact, log_level="debug", log_format="json")
    slip = b" ".join(FORMS_OF_CANARY).decode()
    said = [SESSION[0], {"role": "user", "content": f"My card 1234 and {slip} are secret."}, *SESSION[2:4]]
    await stage.ask(app, said, HERE, ("Authorization", f"Bearer {CANARY}"), user="somebody")
    await app.close(1)
    (file,) = files_below(folder)
    content = file.read_bytes()
    lines = "".join(capfd.readouterr()).encode()
    assert b'"request"' in lines
    assert not [form for form in FORMS_OF_CANARY if form in lines]
    assert not [form for form in FORMS_OF_CANARY if form in content]
    session = json.loads(content)
    assert session["messages"][1]["content"] == "My [redacted] and " + " ".join(["[redacted]"] * 4) + " are secret."
    assert session["user"] == "[redacted]"
    assert session["tools"][0]["function"]["description"] == "Run [redacted]"
    assert session["messages"][2:4] == SESSION[2:4]


async def test_x6_recordings_are_sealed_and_go_with_their_conversation(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recordings"
    monkeypatch.setenv("RECORD_KEYS", "a:" + "A" * 43 + "=")
    app = await stage.start(record=folder, encryption_key_env="RECORD_KEYS")
    for end in (2, 4, 7):
        await stage.ask(app, SESSION[:end], HERE)
    await stage.ask(app, SESSION[:4], ("x-narrows-conversation", "other"))
    await app.close(1)
    file, other = sorted(files_below(folder), key=lambda each: -each.stat().st_size)
    assert b"rename" not in file.read_bytes()
    with pytest.raises(ValueError, match="NARROWS_ENCRYPTION_KEY_ENV"):
        load(file)
    monkeypatch.setenv("NARROWS_ENCRYPTION_KEY_ENV", "RECORD_KEYS")
    assert [*load(file).messages[:7]] == SESSION[:7]
    shown = CliRunner().invoke(command_line("explain"), ["explain", str(file), "--json"])
    assert shown.exit_code == 0, shown.output
    app = await stage.start(record=folder, encryption_key_env="RECORD_KEYS")
    assert (await page(stage, app, "conversations/it", NOBODY, method="DELETE")).status == 204
    assert files_below(folder) == [other]
    await stage.ask(app, SESSION[:9], HERE)  # waits to be written
    assert (await page(stage, app, "conversations", NOBODY, method="DELETE")).status == 200
    await app.close(1)
    assert files_below(folder) == []


async def test_t9_what_is_off_or_not_chosen_is_not_recorded(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    cases: list[tuple[dict[str, Any], tuple[str, str]]] = [
        ({}, ("x-narrows", "off")),
        ({"record_share": 0.0}, HERE),
        ({"rules": ({"model": "m", "record": False},)}, HERE),
    ]
    for settings, header in cases:
        app = await stage.start(record=folder, **settings)
        await stage.ask(app, SESSION[:4], header)
        await app.close(1)
    assert files_below(folder) == []
    app = await stage.start(record=folder, record_share=0.0, rules=({"model": "m", "record": True},))
    await stage.ask(app, SESSION[:4], ("x-narrows", "observe"))
    edited = [*SESSION[:2], {"role": "assistant", "content": "Otherwise."}, {"role": "user", "content": "Go on."}]
    await stage.ask(app, edited, ("x-narrows", "observe"))
    await app.close(1)
    assert len(files_below(folder)) == 2  # a branch has one of its own


async def test_x6_recordings_are_bounded_in_bytes_and_age(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path / "recordings")
    recordings.open()
    files = [recordings.place("t", str(number), "o", "b", 0) for number in range(4)]
    for number, file in enumerate(files):
        recordings.write(file, b"x" * 100)
        os.utime(file, (time.time() - 1000 + number, time.time() - 1000 + number))
    foreign = tmp_path / "recordings" / "mine.txt"
    foreign.write_text("x" * 1000)
    assert recordings.trim(250, 3600) == 2
    assert [file.exists() for file in files] == [False, False, True, True]
    assert recordings.trim(250, 10) == 0
    assert files_below(tmp_path) == [foreign]


async def test_x6_branches_without_end_are_bounded_and_what_is_half_written_goes(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    app = await stage.start(record=folder)
    for number in range(105):
        other = [*SESSION[:2], {"role": "assistant", "content": f"{number}"}, {"role": "user", "content": "Go on."}]
        await stage.ask(app, other, HERE)
    await app.close(1)
    files = files_below(folder)
    assert len(files) == 100
    half = files[0].with_suffix(".12345")  # of a process that was killed
    half.write_bytes(b"half")
    app = await stage.start(record=folder)
    assert (await page(stage, app, "conversations/it", NOBODY, method="DELETE")).status == 204
    await app.close(1)
    assert files_below(folder) == []


def test_x6_what_a_full_disk_left_half_written_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = Recordings(tmp_path / "recordings")
    recordings.open()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        recordings.write(recordings.place("t", "c", "o", "b", 0), b"secret")
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("before", ["", "a", "ab", "Bearer "])
def test_x4_a_credential_in_a_longer_encoded_text_is_left_out(before: str) -> None:
    encoded = base64.b64encode(f"{before}{CANARY}:and more".encode()).decode()
    content = json.loads(Redaction({}).applied({"a": encoded}, CANARY))["a"]
    assert "[redacted]" in content
    middle = (len(before) + len(CANARY) // 2) * 4 // 3
    assert encoded[middle - 4 : middle + 4] not in content


def test_c6_a_recorder_is_named_at_start_and_refuses_what_cannot_be(tmp_path: Path) -> None:
    settings = Settings(upstream="http://u/v1", record=tmp_path / "r", record_share=0.1)
    words = f"recording: 10% of the conversations are written to {tmp_path / 'r'}, as plain text"
    assert words in " ".join(greeting(settings, "").split())
    assert "recording" not in greeting(Settings(upstream="http://u/v1"), "")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ValueError, match="others may write"):
        Recordings(tmp_path / "open").open()
    with pytest.raises(ValueError, match=r"RE2 pattern \(missing \): \(\); correct it"):
        Redaction({"$": "("})
    assert Redaction({"$": "b+"}).applied({"a": ["abb", 1], "b": None}, "") == b'{"a":["a[redacted]",1],"b":null}'
