"""The documents are complete and lead somewhere: every command, option, setting, header, page, error, metric, preset,
policy, parameter, dependency, target of make and folder of tests is described, in the file where a reader looks for it.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from proxy.cli import command_line
from proxy.config import KeyRow, Settings, load_settings
from proxy.config.presets import PresetTable
from proxy.config.routes import CHATS
from proxy.config.rules import Rule
from proxy.config.settings import SummarizerSettings
from proxy.config.upstreams import UpstreamRow
from proxy.lab.preset_descriptions import parameter_table, preset_table
from proxy.telemetry.metrics import COUNTERS, HISTOGRAMS, Metrics
from tests.kit.paths import ROOT
from tests.long.clients.table import CLIENTS

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROXY, POLICIES, DEPLOY, TESTS = (
    (ROOT / folder / "README.md").read_text(encoding="utf-8") for folder in ("proxy", "policies", "deploy", "tests")
)
FAULTS = (ROOT / "tests" / "FAULTS.md").read_text(encoding="utf-8")
BEHAVIOURS = (ROOT / "tests" / "BEHAVIOURS.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PAGES = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("*.md"))} | {
    path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("[!.]*/*.md"))
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = [path for path in sorted((ROOT / "proxy").rglob("*.py")) if "lab" not in path.relative_to(ROOT).parts]


def _described_presets() -> list[dict[str, Any]]:
    """What `narrows presets --json` says of the built-in presets."""
    described: list[dict[str, Any]] = json.loads(CliRunner().invoke(command_line(), ["presets", "--json"]).stdout)
    return described


PRESETS = _described_presets()


def _options() -> list[tuple[str, str]]:
    commands = getattr(get_command(command_line()), "commands")  # noqa: B009 - typer's own click has no types
    return [
        (name, option)
        for name, command in commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    ]


# --- README.md: what a newcomer reads ---


def test_the_readme_can_be_read_in_five_minutes() -> None:
    assert README.count("\n") <= 200
    assert len(README.split()) <= 2_000


@pytest.mark.parametrize("command", sorted(getattr(get_command(command_line()), "commands")))  # noqa: B009 - as above
def test_every_command_is_in_the_readme_and_its_options_in_that_of_the_proxy(command: str) -> None:
    assert f"| `narrows {command}" in README
    assert f"**`narrows {command}" in PROXY


@pytest.mark.parametrize(("command", "option"), _options())
def test_every_option_is_described_with_its_command(command: str, option: str) -> None:
    start = PROXY.index(f"**`narrows {command}")
    ends = [at.start() for at in re.finditer(r"\n- \*\*`narrows |\n\n", PROXY) if at.start() > start]
    assert f"`{option}`" in PROXY[start : ends[0]]


@cache
def demo() -> str:
    """What `narrows demo` prints."""
    return CliRunner().invoke(command_line(), ["demo"]).stdout


def test_the_figures_of_the_demo_are_those_that_it_prints() -> None:
    printed = [line.split() for line in demo().splitlines()]
    figures = r"([\d,]+) \| ([\d.%]+) \| (\$[\d.]+) \| \**([\d.]+)\** \|$"
    rows = re.findall(rf"^\|.*\|.*\| {figures}", README, re.MULTILINE)
    assert len(rows) == 6
    for tokens, cached, bill, ratio in rows:
        assert [line for line in printed if line[-7:-5] == [tokens, cached] and line[-4:-2] == [bill, ratio]], tokens


def test_the_figures_of_the_demos_long_chat_are_those_that_it_prints() -> None:
    printed = demo()
    paragraph = " ".join(README[README.index("Then a chat of ") :].split("\n\n")[0].split())
    moments = re.findall(r"request (\d+) \(([\d,]+) tokens\)", paragraph)
    assert len(moments) == 4
    for request, tokens in moments:
        assert re.search(rf"^request +{request} .*: {tokens} tokens,", printed, re.MULTILINE), request
    ratio = re.search(r"is (0\.\d+) of doing nothing", paragraph)
    assert ratio
    assert f"aim context: {ratio[1]} of the input bill of doing nothing" in printed


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_every_dependency_earns_its_line(requirement: str) -> None:
    name = re.match(r"[\w-]+", requirement)
    assert name
    assert re.search(rf"\| (?:[\w-]+, )*{name[0]}(?:, [\w-]+)* \|", README)


@pytest.mark.parametrize("path", CHATS)
def test_quick_start_and_paths_name_the_apis(path: str) -> None:
    assert f"`{path}`" in PROXY or f"`POST {path}`" in PROXY


# --- proxy/README.md: settings, headers, pages, metrics, errors ---


@pytest.mark.parametrize("setting", Settings.model_fields)
def test_every_setting_is_described_with_its_default_and_meaning(setting: str) -> None:
    field = Settings.model_fields[setting]
    assert field.description
    row = re.search(rf"^\| `{setting}` \| ([^|]*) \| {re.escape(field.description)} \|$", PROXY, re.MULTILINE)
    assert row
    if isinstance(field.default, (bool, float, str)) and field.default != "":
        assert row[1] == f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


@pytest.mark.parametrize("name", KeyRow.model_fields)
def test_every_field_of_a_key_is_described(name: str) -> None:
    section = PROXY[PROXY.index("\n## Keys") :]
    description = KeyRow.model_fields[name].description
    assert description
    assert re.search(rf"^\| `{name}` \| \w+ \| {re.escape(description)} \|$", section, re.MULTILINE)


@pytest.mark.parametrize("name", SummarizerSettings.model_fields)
def test_every_field_of_a_summarizer_is_shown(name: str) -> None:
    assert re.search(rf"^{name} = ", "".join(_toml()), re.MULTILINE)


def _toml(page: str = PROXY) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", page, re.DOTALL)


def test_everything_that_presets_and_rules_may_say_is_shown_and_can_be_loaded(tmp_path: Path) -> None:
    shown = "".join(block for block in _toml() if "[presets." in block or "[[rules]]" in block)
    (tmp_path / "narrows.toml").write_text(shown)
    settings = load_settings(["--config", str(tmp_path / "narrows.toml")])
    assert settings.presets.keys() == {settings.preset}
    for name in (*PresetTable.model_fields, *Rule.model_fields):
        assert re.search(rf"^{name} = |\.{name}\]\]", shown, re.MULTILINE), name


@pytest.mark.parametrize("field", UpstreamRow.model_fields)
def test_every_field_of_an_upstream_is_described_and_shown(field: str) -> None:
    section = PROXY[PROXY.index("\n## Upstreams\n") :].split("\n## ")[1]
    assert re.search(rf"^\| [^|]*`{field}`", section, re.MULTILINE)
    assert re.search(rf"^{field} = ", "".join(_toml(section)), re.MULTILINE)


@pytest.mark.parametrize("shown", [block for page in PAGES.values() for block in _toml(page)])
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


def test_every_header_is_described() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    headers = set(re.findall(r"\"(x-narrows(?:-[a-z]+)*)\"", source))
    assert headers > {"x-narrows", "x-narrows-mode"}
    assert not [header for header in headers if f"`{header}" not in PROXY]


def test_every_reason_of_a_checkpoint_is_described() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in [*SOURCES, *(ROOT / "policies").rglob("*.py")])
    reasons = set(re.findall(r"\"checkpoint:([a-z-]+)\"", source))
    assert reasons > {"paid", "window"}
    rows = "".join(re.findall(r"^\| `[a-z-]+`.*", PROXY, re.MULTILINE))
    assert not [reason for reason in reasons if f"`{reason}`" not in rows]


def _metrics() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, (_, *labels) in COUNTERS.items():
        yield f"narrows_{name}_total", tuple(labels)
    for name, (_, _, labels_) in HISTOGRAMS.items():
        yield f"narrows_{name}", labels_
    for metric in Metrics().registry._names_to_collectors.values():
        yield next(iter(metric.describe())).name, getattr(metric, "_labelnames")  # noqa: B009 - there is no other way


@pytest.mark.parametrize(("metric", "labels"), sorted(set(_metrics())))
def test_every_metric_is_described_with_its_labels(metric: str, labels: tuple[str, ...]) -> None:
    listed = ", ".join(f"`{label}`" for label in labels)
    assert re.search(rf"^\| `{metric}` \| {listed} ?\| \S", PROXY, re.MULTILINE)


def _strings(path: Path, names: tuple[str, ...]) -> Iterator[str]:
    """The codes given to calls of these names: words in snake case."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in names:
            for each in call.args:
                if isinstance(each, ast.Constant) and re.fullmatch(r"[a-z]+(_[a-z]+)+|forbidden", str(each.value)):
                    yield str(each.value)


def test_every_code_of_an_error_is_described() -> None:
    codes = {code for path in SOURCES for code in _strings(path, ("ApiError", "FailedError"))}
    assert {"forbidden", "body_too_large"} < codes
    section = PROXY[PROXY.index("\n## Errors") :]
    assert not [code for code in codes if f"`{code}`" not in section]


@pytest.mark.parametrize(
    "page", ["/healthz", "/readyz", "/metrics", "/narrows/originals/REF", "/narrows/artifacts/DIGEST"]
)
def test_every_page_is_described(page: str) -> None:
    assert f"| `GET {page}` |" in PROXY


@pytest.mark.parametrize("page", ["", "/summaries", "/artifacts", "/history"])
def test_every_page_of_a_conversation_is_described(page: str) -> None:
    assert f"| `GET /narrows/conversations/ID{page}` |" in PROXY


# --- policies/README.md: presets, policies, parameters ---


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset["name"])
def test_every_preset_and_its_policies_are_described(preset: dict[str, Any]) -> None:
    assert f"| `{preset['name']}` |" in POLICIES
    for policy in preset["policies"]:
        assert f"| `{policy['policy']}` |" in POLICIES


def test_every_parameter_of_a_policy_is_described_with_its_bounds_and_its_meaning() -> None:
    for table in (parameter_table(), preset_table()):
        assert table in POLICIES, f"put this into policies/README.md:\n{table}"


# --- deploy/README.md, tests/README.md and BEHAVIOURS.md ---


@pytest.mark.parametrize("file", ["compose.yaml", "haproxy.cfg", "narrows.toml", "example.env"])
def test_every_file_of_a_deployment_is_described(file: str) -> None:
    assert (ROOT / "deploy" / file).is_file()
    assert file in DEPLOY


@pytest.mark.parametrize("target", re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
def test_every_target_of_make_is_described(target: str) -> None:
    assert f"| `make {target}` |" in TESTS


@pytest.mark.parametrize(
    "folder", [path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists()]
)
def test_every_folder_of_tests_is_described(folder: str) -> None:
    assert f"`{folder}/`" in TESTS


def _behaviours() -> set[str]:
    """The ids in BEHAVIOURS.md: a letter and a number, in lower case."""
    sections = re.findall(r"^## ([A-Z])\. .*?$(.*?)(?=^## |\Z)", BEHAVIOURS, re.MULTILINE | re.DOTALL)
    return {
        f"{letter.lower()}{number}"
        for letter, section in sections
        for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)
    }


def test_the_behaviours_are_numbered_without_gaps() -> None:
    ids = _behaviours()
    for letter in {id_[0] for id_ in ids}:
        numbers = sorted(int(id_[1:]) for id_ in ids if id_[0] == letter)
        assert numbers == list(range(1, len(numbers) + 1)), letter


def test_every_behaviour_and_law_that_a_test_names_exists() -> None:
    known, unknown = _behaviours(), []
    laws = set(re.findall(r"^  (\d)  ", (ROOT / "policies" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def test_(\w+)", path.read_text(encoding="utf-8")):
            if law := re.match(r"law_((?:\d_)+)", name):
                unknown += [f"{path.name}: {name}" for each in law[1].split("_") if each and each not in laws]
                name = name[law.end() :]
            for id_ in re.match(r"(?:[a-z]\d+_)*", name)[0].split("_"):  # type: ignore[index]  # it always matches
                unknown += [f"{path.name}: {name}"] if id_ and id_ not in known else []
    assert not unknown


def _faults() -> dict[str, str]:
    """The rows of FAULTS.md: what shows each of them, by its number."""
    return dict(re.findall(r"^\| (A?\d+) \| [^|]+ \| ([^|]*) \|$", FAULTS, re.MULTILINE))


def test_every_fault_and_every_attack_has_a_row() -> None:
    assert [*_faults()] == [*(str(number) for number in range(1, 72)), *(f"A{number}" for number in range(1, 48))]


def test_every_fault_has_a_test_that_exists_or_says_why_not() -> None:
    for number, shows in _faults().items():
        names = re.findall(r"`([\w/]+\.py)::(\w+)`", shows)
        assert names or shows.startswith("none"), number
        for file, name in names:
            code = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^(?:(?:async )?def {name}\(|{name} = )", code, re.MULTILINE), (number, file, name)


# --- all of them ---


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_command_in_the_docs_shows_a_password(page: Path) -> None:
    """Whoever is on the machine reads it in `ps`, and it stays in the shell's history."""
    code = "\n".join(re.findall(r"^```sh$(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL))
    assert not re.search(r"--[\w-]+[ =]\S*://[^\s/]*:[^\s/]*@|redis-cli.* -a |--requirepass", code)


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page.parent / name).resolve() if name else (ROOT / page).resolve()
        assert path.exists(), target
        assert path.is_relative_to(ROOT.resolve()), target
        assert not anchor or anchor in _anchors(path.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_nothing_is_left_to_fill_in_and_lines_can_be_read(page: Path) -> None:
    # what `make figures` and `make bench` measure stands between marks
    text = re.sub(r"^<!-- (?:figures: [a-z-]+|bench|end) -->$", "", PAGES[page], flags=re.MULTILINE)
    assert not re.search(r"<!--|TODO|FIXME|XXX", re.sub(r"`<!-- [^`]* -->`", "", text))
    code = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    assert not [line for line in code.splitlines() if len(line) > 160 and not line.startswith(("|", "#"))]


def test_the_changelog_knows_this_version() -> None:
    assert re.search(rf"^## {re.escape(PROJECT['version'])} \(\d{{4}}-\d\d-\d\d\)$", CHANGELOG, re.MULTILINE)


def test_every_attribute_of_a_span_is_described() -> None:
    source = (ROOT / "proxy" / "telemetry" / "spans.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"((?:http|url|server|error|gen_ai|narrows)\.[a-z_.]+)"', source))
    assert {"narrows.mode", "gen_ai.request.model", "error.type"} < names
    section = PROXY[PROXY.index("\n## Traces") : PROXY.index("\n## Errors")]
    assert not [name for name in names if f"`{name}`" not in section]


@pytest.mark.parametrize("client", sorted({re.sub(" (in front|behind)$", "", client.name) for client in CLIENTS}))
def test_every_client_that_is_tried_is_in_the_table(client: str) -> None:
    assert re.search(rf"^\| {client}\b", PROXY[PROXY.index("\n## Clients") : PROXY.index("\n## Recall")], re.MULTILINE)
