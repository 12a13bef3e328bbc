"""proxy/README.md: settings, headers, pages, metrics, errors, clients."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.config import Configured, KeyRow, Settings
from proxy.config.groups.summaries import SummarizerSettings
from proxy.config.options import default_in_words
from proxy.config.presets import PresetTable
from proxy.config.routes import CHATS
from proxy.config.rules import Rule
from proxy.config.settings import GROUPS
from proxy.config.upstreams import UpstreamRow
from proxy.telemetry.metrics import COUNTERS, HISTOGRAMS, Metrics
from tests.docs.documents import PROXY, toml_blocks
from tests.kit.paths import ROOT
from tests.kit.settings import settings_with
from tests.long.clients.table import CLIENTS

SOURCES = [path for path in sorted((ROOT / "proxy").rglob("*.py")) if "lab" not in path.relative_to(ROOT).parts]


@pytest.mark.parametrize("path", CHATS)
def test_quick_start_and_paths_name_the_apis(path: str) -> None:
    assert f"`{path}`" in PROXY or f"`POST {path}`" in PROXY


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: str(group.__doc__))
def test_every_setting_is_described_with_its_default_and_meaning_in_its_group(group: type[Configured]) -> None:
    rows = []
    for name, field in group.model_fields.items():
        words = default_in_words(field)
        default = words if field.json_schema_extra else f"`{words}`" if words else "none"
        rows.append(f"| `{name}` | {default} | {field.description} |")
    table = "\n".join([f"**{group.__doc__}**", "", "| setting | default | meaning |", "|---|---|---|", *rows])
    assert f"\n{table}\n\n" in PROXY, f"put this into proxy/README.md:\n{table}"


def test_every_setting_is_in_one_group() -> None:
    assert [name for group in GROUPS for name in group.model_fields] == [*Settings.model_fields]


@pytest.mark.parametrize("name", KeyRow.model_fields)
def test_every_field_of_a_key_is_described(name: str) -> None:
    section = PROXY[PROXY.index("\n## Keys") :]
    description = KeyRow.model_fields[name].description
    assert description
    assert re.search(rf"^\| `{name}` \| \w+ \| {re.escape(description)} \|$", section, re.MULTILINE)


@pytest.mark.parametrize("name", SummarizerSettings.model_fields)
def test_every_field_of_a_summarizer_is_shown(name: str) -> None:
    assert re.search(rf"^{name} = ", "".join(toml_blocks()), re.MULTILINE)


def test_everything_that_presets_and_rules_may_say_is_shown_and_can_be_loaded(tmp_path: Path) -> None:
    shown = "".join(block for block in toml_blocks() if "[presets." in block or "[[rules]]" in block)
    (tmp_path / "narrows.toml").write_text(shown)
    settings = settings_with(["--config", str(tmp_path / "narrows.toml")])
    assert settings.presets.keys() == {settings.preset}
    for name in (*PresetTable.model_fields, *Rule.model_fields):
        assert re.search(rf"^{name} = |\.{name}\]\]", shown, re.MULTILINE), name


@pytest.mark.parametrize("field", UpstreamRow.model_fields)
def test_every_field_of_an_upstream_is_described_and_shown(field: str) -> None:
    section = PROXY[PROXY.index("\n## Upstreams\n") :].split("\n## ")[1]
    assert re.search(rf"^\| [^|]*`{field}`", section, re.MULTILINE)
    assert re.search(rf"^{field} = ", "".join(toml_blocks(section)), re.MULTILINE)


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
    section = PROXY[PROXY.index("\n# Errors") :]
    assert not [code for code in codes if f"`{code}`" not in section]


@pytest.mark.parametrize(
    "page", ["/healthz", "/readyz", "/metrics", "/narrows/originals/REF", "/narrows/artifacts/DIGEST"]
)
def test_every_page_is_described(page: str) -> None:
    assert f"| `GET {page}` |" in PROXY


@pytest.mark.parametrize("page", ["", "/summaries", "/artifacts", "/history"])
def test_every_page_of_a_conversation_is_described(page: str) -> None:
    assert f"| `GET /narrows/conversations/ID{page}` |" in PROXY


def test_every_attribute_of_a_span_is_described() -> None:
    source = (ROOT / "proxy" / "telemetry" / "spans.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"((?:http|url|server|error|gen_ai|narrows)\.[a-z_.]+)"', source))
    assert {"narrows.mode", "gen_ai.request.model", "error.type"} < names
    section = PROXY[PROXY.index("\n## Traces") :]
    assert not [name for name in names if f"`{name}`" not in section]


@pytest.mark.parametrize("client", sorted({re.sub(" (in front|behind)$", "", client.name) for client in CLIENTS}))
def test_every_client_that_is_tried_is_in_the_table(client: str) -> None:
    assert re.search(rf"^\| {client}\b", PROXY[PROXY.index("\n## Clients") :], re.MULTILINE)
