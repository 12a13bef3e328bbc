"""The words of the command line: each command as a program, its exit codes, and one clear line for each mistake."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.main import get_command

from proxy.console import cli
from proxy.console import output as cli_output
from proxy.lab import arguments as checks

SHIPPED = str(files("proxy.lab.sessions") / "write_once.json")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str, str]:
    """The exit code, what was printed, and what was said on stderr."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(words)
    captured = capsys.readouterr()
    return leaving.value.code or 0, captured.out, captured.err


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proxy.console.cli", *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("explain", ["--model", "--preset", "--config", "--prices", "--text-protocol", "--json"]),
        (
            "replay",
            [
                *("--prices", "--cache", "--preset", "--config", "--chain", "--upstream"),
                *("--credential-env", "--text-protocol", "--needs", "--json"),
            ],
        ),
        ("demo", ["--prices"]),
        ("presets", ["NAME", "--config", "--json"]),
        ("audit", ["CONVERSATION", "--store", "--config", "--tenant", "--limit", "--json"]),
        ("usage", ["--by", "--since", "--store", "--config", "--tenant", "--json", "--csv", "conversation"]),
        ("serve", ["--port", "--upstream", "--store", "--preset", "--config"]),
    ],
)
def test_help_of_a_command_names_every_option(
    capsys: pytest.CaptureFixture[str], command: str, options: list[str]
) -> None:
    code, out, _ = told(capsys, command, "--help")
    assert code == 0
    assert [option for option in options if option not in out] == []


def test_no_key_can_be_given_as_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "replay", "--help")
    for word in ("--key", "--api-key", "--credential ", "--token", "--password"):
        assert word not in out


def test_replay_as_a_program() -> None:
    done = program("replay", SHIPPED, "--prices", "gpt-5.4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "write_once" in done.stdout
    assert "fewer than 60 requests, with tools" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= cli_output.WIDE


def test_replay_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "replay", SHIPPED, "--prices", "gpt-4o", "--prices", "gpt-5.4", "--json", "--chain")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {"sessions", "means", "presets"}
    assert [(row["session"], row["prices"]) for row in found["sessions"]] == [
        ("write_once", "gpt-4o"),
        ("write_once", "gpt-5.4"),
    ]
    assert [row["group"] for row in found["means"]] == ["short", "short"]


def test_replay_prints_what_was_needed_and_hidden_where_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    session = str(Path(SHIPPED).with_name("long_day.json"))
    words = ("replay", session, "--prices", "gpt-5.4", "--preset", "eager", "--json")
    (row,) = json.loads(told(capsys, *words, "--needs")[1])["sessions"]
    needs = row["needs"]
    places = needs.pop("by_place")
    assert len(places) == needs["hidden_texts"] > 0
    assert needs["out_of_sight"] == len({place["request"] for place in places})
    assert needs["share_out_of_sight"] == round(needs["out_of_sight"] / needs["actions"], 4) > 0
    assert (needs["connected"], needs["actions"]) == (sum(place["connects"] for place in places), row["requests"])
    assert json.loads(told(capsys, *words)[1])["sessions"][0]["needs"] == needs
    _, out, _ = told(capsys, *words[:-1], "--needs")
    assert len(re.findall(r"^request \d+, \d+ turns ago, (?:an edit|a call|prose): ", out, re.M)) == len(places)
    assert len(re.findall(r"^    stub, which (?:connects|does not connect): ", out, re.M)) == len(places)
    assert f"{needs['share_out_of_sight']:.1%}" in out


def test_a_replay_that_finds_faults_ends_with_1_and_says_which(
    capsys: pytest.CaptureFixture[str], free_port: int
) -> None:
    code, out, _ = told(capsys, "replay", SHIPPED, "--upstream", f"http://127.0.0.1:{free_port}/v1")
    assert code == 1
    assert "write_once: first refusal 502: " in out


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["explain", "/no/such.json"], "cannot read /no/such.json"),
        (["explain", "/"], "cannot read /"),
        (["explain", SHIPPED, "--preset", "x"], "agent-summary, chat, coding-agent, "),
        (["explain", SHIPPED, "--prices", "x"], "nobody knows the prices of 'x'"),
        (["replay", "/no/such.json"], "cannot read /no/such.json"),
        (["replay", SHIPPED, "/"], "cannot read /"),
        (["replay", SHIPPED, "--preset", "x"], "agent-summary, chat, coding-agent, "),
        (["replay", SHIPPED, "--prices", "x"], "nobody knows the prices of 'x'"),
        (["replay", SHIPPED, "--upstream", "example.com"], "give a whole URL"),
        (["replay", SHIPPED, "--credential-env", "NO_SUCH_KEY"], "variable NO_SUCH_KEY is empty or not set"),
        (["demo", "--prices", "x"], "nobody knows the prices of 'x'"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], advice: str
) -> None:
    code, out, err = told(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("narrows: ")
    assert advice in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["explain"], "Missing argument 'FILE|-'; see `narrows explain --help`"),
        (["explain", SHIPPED, "--nosuch"], "No such option: --nosuch; see `narrows explain --help`"),
        (["explain", SHIPPED, "--jsn"], "No such option: --jsn (Possible options: --json)"),
        (
            ["explain", SHIPPED, "more", "a b"],
            "Got unexpected extra argument(s) (more a b); see `narrows explain",
        ),
        (["audit", "--limit", "0"], "Invalid value for '--limit': Input should be greater than or equal to 1"),
        (["audit", "--limit", "few"], "Invalid value for '--limit': Input should be a valid integer"),
        (["replay"], "Missing argument 'FILE...'"),
        (
            ["agree", SHIPPED, "--concurrency", "0"],
            "Invalid value for '--concurrency': Input should be greater than or equal to 1",
        ),
        (
            ["replay", SHIPPED, "--cache", "magic"],
            "Invalid value for '--cache': Value error, 'magic' is not one of 'prefix', 'breakpoint', 'none'",
        ),
        (["replay", SHIPPED, "--cache"], "Option '--cache' requires an argument; see `narrows replay --help`"),
        (["nosuch"], "No such command 'nosuch'; see `narrows --help`"),
        (["sevre"], "No such command 'sevre'. Did you mean 'serve'?"),
        (["--version=3"], "Option '--version' does not take a value; see `narrows --help`"),
        (["--e\x1b[0m"], "No such option: --e\\x1b[0m; see"),
        (["--verison"], "No such option: --verison (Possible options: --version)"),
    ],
)
def test_words_that_fit_nothing_are_one_clear_line(
    capsys: pytest.CaptureFixture[str], words: list[str], advice: str
) -> None:
    code, out, err = told(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"narrows: {advice}")
    assert err.count("\n") == 1


def test_whoever_interrupts_the_start_gets_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("proxy.console.cli.command_line", interrupted)
    assert told(capsys, "serve") == (130, "", "")


def test_narrows_alone_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    alone, short, long = told(capsys), told(capsys, "-h"), told(capsys, "--help")
    assert alone == short == long
    assert (alone[0], alone[2]) == (0, "")
    assert all(f"  {name} " in alone[1] and line in alone[1] for name, (_, line) in cli.COMMANDS.items())
    _, beginning = alone[1].split("To begin:\n")
    assert [f"narrows {name}" in beginning for name in ("demo", "run", "serve")] == [True] * 3
    assert beginning.count("\n") == 3
    assert told(capsys, "usage", "-h") == told(capsys, "usage", "--help")


def test_the_version_says_where_the_store_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARROWS_STORE", "@".join(("redis://me:secret", "127.0.0.1/0")))
    code, out, err = told(capsys, "--version")
    first, second, third = out.splitlines()
    assert (code, first, err) == (0, f"narrows {version('narrows')}", "")
    assert second.startswith("Python 3.")
    assert third.startswith("store redis://")
    assert "secret" not in out
    monkeypatch.setenv("NARROWS_PORT", "x")  # whoever reports a fault is asked for the version, too
    code, out, err = told(capsys, "--version")
    trouble = "port: Input should be a valid integer, unable to parse string as an integer (NARROWS_PORT)"
    assert (code, out.splitlines(), err) == (0, [first, second, f"store unknown: {trouble}"], "")


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_option_says_what_its_value_is(command: str) -> None:
    commands = getattr(get_command(cli.command_line()), "commands")  # noqa: B009 - typer's own click has no types
    parameters = [each for each in commands[command].params if each.param_type_name == "option"]
    assert [each.name for each in parameters if not each.is_flag and not each.metavar] == []
    assert [each.name for each in commands[command].params if not each.help] == []


def completions(tmp_path: Path, *words: str) -> set[str]:
    """What bash offers for the last word, by the script that `narrows --show-completion` prints."""
    (tmp_path / "narrows").write_text(f'#!/bin/sh\nexec {sys.executable} -m proxy.console.cli "$@"\n')
    (tmp_path / "narrows").chmod(0o700)
    script = f"""
        eval "$({sys.executable} -c 'from typer.completion import get_completion_script as script
print(script(prog_name="narrows", complete_var="_NARROWS_COMPLETE", shell="bash"))')"
        COMP_WORDS=(narrows {shlex.join(words)}) COMP_CWORD={len(words)}
        _narrows_completion narrows; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ser"], {"serve"}),  # codespell:ignore ser
        (["serve", "--summary-t"], {"--summary-tokens", "--summary-timeout", "--summary-ttl"}),
        (["serve", "--port", "1", "--mode", "o"], {"on", "off", "observe"}),
        (["serve", "--preset", "ad"], {"adaptive"}),
        (["env", "co"], {"codex"}),
        (["replay", "--preset", "tool"], {"tool-digest"}),
    ],
)
def test_bash_completes_commands_settings_and_names(tmp_path: Path, words: list[str], offered: set[str]) -> None:
    assert completions(tmp_path, *words) == offered


def test_a_file_that_is_no_request_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text('{"model": "m", "messages": ["hi"]}')
    code, _, err = told(capsys, "explain", str(file))
    assert code == 2
    assert err.startswith("narrows: ")


def test_of_a_folder_it_says_which_files_are_in_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for depth in ("*.json", "*/*.json"):
        code, out, err = told(capsys, "replay", str(tmp_path))
        assert (code, out) == (2, "")
        assert err.endswith(f"name the files in it, such as {tmp_path}/{depth}\n")
        (tmp_path / "tenant").mkdir(exist_ok=True)
        (tmp_path / "tenant" / "recorded.json").write_text("{}")


def test_x8_a_name_in_a_request_is_no_style(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    odd = "[/b]:smile:[red]"
    call = {"id": "c", "type": "function", "function": {"name": odd, "arguments": "{}"}}
    turn = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "\n".join(f"value_{n} = {n * 7}" for n in range(2_000))},
    ]
    file = tmp_path / "request.json"
    messages = [{"role": "user", "content": "hi"}, *turn * 4]
    file.write_text(json.dumps({"model": odd, "messages": messages, "tools": [{"type": "function"}]}))
    code, out, err = told(capsys, "explain", str(file))
    assert (code, err) == (0, "")
    assert f"result {odd}" in out
    assert "its bill, nothing cached" in out


def test_the_key_of_a_real_upstream_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-1")
    assert checks.credential("SOME_KEY") == "sk-1"
    assert checks.credential("") == ""


def test_what_each_command_does_stands_in_one_line() -> None:
    done = program("--help")
    assert done.returncode == 0
    assert "..." not in done.stdout.partition("Commands:")[2]
