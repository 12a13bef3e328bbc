"""The manual of the proxy: the map in proxy/README.md, and the pages beside the rooms."""

import re
from pathlib import Path

import pytest

from proxy.config.groups.compaction import SummarizerSettings
from proxy.config.presets import PresetTable
from proxy.config.routes import CHATS
from proxy.config.rules import Rule
from proxy.config.upstreams import UpstreamRow
from tests.docs.documents import MANUAL, PAGES, toml_blocks
from tests.docs.reference import FOLDER
from tests.kit.paths import ROOT
from tests.kit.settings import settings_with
from tests.limits import LIMITS, PAGE_WORDS, WORDS
from tests.long.clients.table import CLIENTS

MAP = Path("proxy/README.md")
NAMES = re.compile(r"`(narrows_[a-z_]+|x-narrows[a-z-]*)[`:{]")
"""Metrics and headers; two that look alike are a tool and a mark of summaries."""
ALL = "\n\n".join(MANUAL.values())


def section(page: str, heading: str) -> str:
    """A section of a page, without those behind it."""
    text = PAGES[Path(page)]
    return text[text.index(f"\n## {heading}\n") :].split("\n## ")[1]


@pytest.mark.parametrize("page", MANUAL, ids=str)
def test_a_page_can_be_read_at_one_sitting(page: Path) -> None:
    assert len(MANUAL[page].split()) <= LIMITS[WORDS if page == MAP else PAGE_WORDS].value


def test_the_map_leads_to_each_page() -> None:
    links = {(ROOT / MAP.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)", PAGES[MAP])}
    pages = [page for page in PAGES if page.parts[0] == "proxy" and page != MAP]
    assert not [page for page in pages if (ROOT / page).resolve() not in links]


@pytest.mark.parametrize("path", CHATS)
def test_the_paths_of_all_apis_are_described(path: str) -> None:
    assert f"`{path}`" in ALL or f"`POST {path}`" in ALL


@pytest.mark.parametrize("name", SummarizerSettings.model_fields)
def test_every_field_of_a_summarizer_is_shown(name: str) -> None:
    assert re.search(rf"^{name} = ", "".join(toml_blocks(ALL)), re.MULTILINE)


def test_everything_that_presets_and_rules_may_say_is_shown_and_can_be_loaded(tmp_path: Path) -> None:
    shown = "".join(block for block in toml_blocks(ALL) if "[presets." in block or "[[rules]]" in block)
    (tmp_path / "narrows.toml").write_text(shown)
    settings = settings_with(["--config", str(tmp_path / "narrows.toml")])
    assert settings.presets.keys() == {settings.preset}
    for name in (*PresetTable.model_fields, *Rule.model_fields):
        assert re.search(rf"^{name} = |\.{name}\]\]", shown, re.MULTILINE), name


@pytest.mark.parametrize("field", UpstreamRow.model_fields)
def test_every_field_of_an_upstream_is_shown(field: str) -> None:
    shown = "".join(toml_blocks(PAGES[Path("proxy/upstreams/README.md")]))
    assert re.search(rf"^{field} = ", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "page", ["/healthz", "/readyz", "/metrics", "/narrows/originals/REF", "/narrows/artifacts/DIGEST"]
)
def test_every_page_is_described(page: str) -> None:
    assert f"| `GET {page}` |" in ALL


@pytest.mark.parametrize("page", ["", "/summaries", "/artifacts", "/history"])
def test_every_page_of_a_conversation_is_described(page: str) -> None:
    assert f"| `GET /narrows/conversations/ID{page}` |" in ALL


def test_every_attribute_of_a_span_is_described() -> None:
    source = (ROOT / "proxy" / "telemetry" / "spans.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"((?:http|url|server|error|gen_ai|narrows)\.[a-z_.]+)"', source))
    assert {"narrows.mode", "gen_ai.request.model", "error.type"} < names
    traces = section("proxy/addons/telemetry/README.md", "Traces")
    assert not [name for name in names if f"`{name}`" not in traces]


def test_every_line_of_the_log_is_described_and_no_other() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "proxy").rglob("*.py")
        if "lab" not in path.relative_to(ROOT).parts
    ]
    source = "".join(sources)
    lines = set(re.findall(r'log\.(?:info|warning|error)\(\s*"([a-z_.]+)"', source))
    assert {"overflow", "upstream_address", "worker_died"} < lines
    items = re.findall(r"^- (`.*?): ", section("proxy/addons/telemetry/README.md", "The log"), re.MULTILINE | re.DOTALL)
    described = set(re.findall(r"`([a-z_.]+)`", " ".join(items)))
    assert not lines - described
    composed = re.compile(r"\w+_(trouble|recovered|lost)|(summary|digest)\.\w*")  # a name, and what became of it
    assert not [line for line in described if f'"{line}"' not in source and not composed.fullmatch(line)]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_names_a_metric_or_a_header_that_is_not_there(page: Path) -> None:
    if page == Path("CHANGELOG.md"):
        return
    reference = "".join(path.read_text(encoding="utf-8") for path in FOLDER.iterdir())
    assert set(NAMES.findall(PAGES[page])) <= {*NAMES.findall(reference), "narrows_recall", "narrows_summary"}


@pytest.mark.parametrize(
    "client", sorted({re.sub(" (in front|behind|with MCP adapters)$", "", client.name) for client in CLIENTS})
)
def test_every_client_that_is_tried_is_in_the_table(client: str) -> None:
    assert re.search(rf"^\| {client}\b", section("proxy/console/README.md", "Clients"), re.MULTILINE)
