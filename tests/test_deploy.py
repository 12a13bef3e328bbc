"""What is deployed fits what Narrows is: the image, the composed services, and the settings that they are given."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from yarl import URL

from proxy.config import Settings
from proxy.telemetry.metrics import COUNTERS, HISTOGRAMS
from tests.kit.running import Start
from tests.kit.settings import settings_with

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
BASE = r"\S+:[\w.-]+@sha256:[0-9a-f]{64}"
"""An image by tag, for people, and by digest, for what is pulled."""
FINAL = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
COMPOSED: Any = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
SERVICES = COMPOSED["services"]
BALANCER = (ROOT / "deploy" / "haproxy.cfg").read_text()
DASHBOARD: Any = json.loads((ROOT / "deploy" / "grafana" / "narrows.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: Any = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
EXPRESSIONS = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(variable["query"]["query"] for variable in DASHBOARD["templating"]["list"][1:]),
    *(rule["expr"] for rule in RULES),
]
GAUGES = dict.fromkeys(("running", "connections", "bytes_in_flight", "store_bytes"), ())
GAUGES |= {"build_info": ("version", "settings"), "breakers_open": ("name",)}
SERIES: dict[str, tuple[str, ...]] = {
    **{f"narrows_{name}_total": tuple(labels) for name, (_, *labels) in COUNTERS.items()},
    **{f"narrows_{name}_bucket": ("le", *labels) for name, (_, _, labels) in HISTOGRAMS.items()},
    **{f"narrows_{name}": labels for name, labels in GAUGES.items()},
}
OF_PROMETHEUS = {"job", "instance"}


def instruction(name: str) -> str:
    """What the image is told by it."""
    (found,) = re.findall(rf"^{name} (.*)$", FINAL, re.MULTILINE)
    return str(found)


def exec_form(text: str) -> list[str]:
    """The words of a command without a shell: what follows the options."""
    words: list[str] = json.loads(text[text.index("[") :])
    return words


def test_the_dockerfile_follows_the_rules_of_hadolint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_the_image_runs_the_command_itself_without_rights_and_downloads_nothing() -> None:
    assert [exec_form(instruction("ENTRYPOINT")), exec_form(instruction("CMD"))] == [["narrows"], ["serve"]]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instruction("USER"))
    assert not re.search(r"pip |apt|curl|wget|--mount", FINAL)
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"] == {
        "narrows": "narrows.proxy.console.cli:main"
    }


def test_images_are_named_by_digest() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases
    assert set(bases) == {"${BASE}"}
    assert re.search(rf"^ARG BASE={BASE}$", DOCKERFILE, re.MULTILINE)
    images = {name: service["image"] for name, service in SERVICES.items() if "build" not in service}
    assert images
    assert [name for name, image in images.items() if not re.fullmatch(BASE, image)] == []


@pytest.mark.parametrize(
    ("lock", "extras"), [("requirements.lock", False), (".ci/requirements.lock", True)], ids=["image", "development"]
)
def test_lock_files_have_a_hash_for_each_file_of_what_pyproject_asks_for(lock: str, extras: bool) -> None:
    text = (ROOT / lock).read_text()
    versions = re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)  # one may have several, for several Pythons
    locked = dict(versions)
    assert len(versions) == len(re.findall(r"^[\w.-]+==[^\n]+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [name for names in project["optional-dependencies"].values() for name in names]
    for line in [*project["dependencies"], *(optional if extras else ())]:
        wanted = Requirement(line)
        assert wanted.specifier.contains(locked[wanted.name], prereleases=True), line


def test_the_wheel_is_built_from_what_the_build_is_given() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"]
    named = project["project"]
    needed = {"pyproject.toml", named["readme"], *named["license-files"], hook, "proxy", "policies"}
    locks = {"requirements.lock", "deploy/build.lock"}
    offered = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert offered == needed | locks
    assert needed <= set(re.findall(r"[\w./]+", " ".join(re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE))))


def test_the_image_is_given_settings_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict(re.findall(r"(NARROWS_\w+)=(\S+)", instruction("ENV")))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = settings_with(["--upstream", "https://api.example.com/v1"])
    assert (settings.host, settings.port) == ("0.0.0.0", int(instruction("EXPOSE")))  # noqa: S104 - in a container
    assert settings.store.startswith(f"sqlite:///{exec_form(instruction('VOLUME'))[0]}/")


async def test_the_images_health_check_tells_a_narrows_that_serves_from_none(narrows: Start, free_port: int) -> None:
    setup = await narrows()
    _, *words = exec_form(instruction("HEALTHCHECK").partition("CMD")[2])
    assert await health(words, setup.port) == 0
    assert await health(words, free_port) != 0


async def health(words: list[str], port: int) -> int:
    """The exit code of the check where NARROWS_PORT is that port."""
    environment = {**os.environ, "NARROWS_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


def test_every_replica_is_told_the_same_and_finds_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    narrows = SERVICES["narrows"]
    told = {name.removeprefix("NARROWS_").lower(): value for name, value in narrows["environment"].items()}
    assert set(told) <= set(Settings.model_fields)
    assert {"store", "tenant_secret", "config"} <= set(told)
    assert f"./narrows.toml:{told['config']}:ro" in narrows["volumes"]
    assert URL(told["store"]).host in SERVICES
    monkeypatch.setenv("NARROWS_TENANT_SECRET", "s")
    settings = settings_with(["--config", str(ROOT / "deploy" / "narrows.toml"), "--store", told["store"]])
    assert settings.upstream == "https://api.openai.com/v1"


def test_secrets_have_no_value_in_the_files() -> None:
    secrets = ("NARROWS_TENANT_SECRET", "NARROWS_METRICS_TOKEN", "GRAFANA_PASSWORD")
    written = [value for service in SERVICES.values() for value in service.get("environment", {}).values()]
    for name in secrets:
        assert [value for value in written if re.fullmatch(rf"\$\{{{name}:\?[^}}]+\}}", value)]
    assert not [value for value in written if "${" in value and ":?" not in value]
    example = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "deploy" / "example.env").read_text(), re.MULTILINE))
    assert example == dict.fromkeys(secrets, "")
    assert (ROOT / "deploy" / ".gitignore").read_text() == ".env\n"


def test_redis_keeps_what_names_the_tenants_and_is_reached_by_narrows_alone() -> None:
    server = SERVICES["redis"]
    policy = server["command"][server["command"].index("--maxmemory-policy") + 1]
    assert policy in ("noeviction", "volatile-lru")
    assert "ports" not in server
    assert server["networks"] == ["inside"]
    assert COMPOSED["networks"]["inside"] == {"internal": True}


def test_the_balancer_knows_every_replica_and_outlasts_what_narrows_waits_for() -> None:
    size, host, port = re.search(r"server-template \w+ (\d+) (\w+):(\d+)", BALANCER).groups()  # type: ignore[union-attr]
    assert (int(size), port) == (SERVICES[host]["scale"], instruction("EXPOSE"))
    published = SERVICES["balancer"]["ports"][0].rpartition(":")[2]
    assert f"bind :{published}\n" in BALANCER
    waits = dict(re.findall(r"timeout (server|client|http-request) +(\d+)s", BALANCER))
    assert min(int(waits["server"]), int(waits["client"])) > Settings.model_fields["read_timeout"].default
    assert "option forwardfor\n" in BALANCER


@pytest.mark.parametrize("service", ["narrows", "balancer", "prometheus", "grafana"])
def test_services_write_nowhere_and_have_no_rights(service: str) -> None:
    told = SERVICES[service]
    assert (told["read_only"], told["cap_drop"]) == (True, ["ALL"])
    assert told["security_opt"] == ["no-new-privileges:true"]


def test_a_stopped_replica_has_its_time() -> None:
    allowed = int(SERVICES["narrows"]["stop_grace_period"].removesuffix("s"))
    assert allowed > Settings.model_fields["grace"].default


@pytest.mark.parametrize("expression", sorted(set(EXPRESSIONS)))
def test_what_is_drawn_and_what_alerts_is_counted_under_these_names_and_labels(expression: str) -> None:
    names = set(re.findall(r"\b(?:narrows|process)_\w+|\bup\b", expression))
    assert names
    assert not [name for name in names if name.startswith("narrows_") and name not in SERIES]
    labels = {label for name in names for label in SERIES.get(name, ())} | OF_PROMETHEUS
    groups = re.findall(r"\bby \(([^)]*)\)|label_values\(\w+, (\w+)\)", expression)
    used = {label for group in groups for label in re.findall(r"\w+", " ".join(group))}
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression):
        used |= {*re.findall(r'(\w+) *(?:=~|!~|!=|=) *"', matchers)} - {*SERIES.get(name, ())}
    assert used <= labels


def test_the_dashboard_is_whole() -> None:
    used = " ".join(EXPRESSIONS)
    money = {"narrows_cost_usd_total", "narrows_cost_baseline_usd_total", "narrows_prefix_rewritten_tokens_total"}
    assert all(name in used for name in money | {f"narrows_{name}_bucket" for name in HISTOGRAMS})
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
    taken = [(x, y) for panel in DASHBOARD["panels"] for x, y in _cells(**panel["gridPos"])]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) == 23


def _cells(x: int, y: int, w: int, h: int) -> list[tuple[int, int]]:
    return [(x + right, y + down) for right in range(w) for down in range(h)]


def test_every_alert_says_what_to_do_and_is_tried() -> None:
    tried: Any = yaml.safe_load((ROOT / "tests" / "long" / "alerts.yml").read_text())["tests"]
    well, ill = (test["promql_expr_test"][0]["exp_samples"] for test in tried)
    assert well == []
    assert [f'{{alertname="{rule["alert"]}"}}' for rule in RULES] == [sample["labels"] for sample in ill]
    assert f"has {len(RULES)} alerts" in (ROOT / "deploy" / "README.md").read_text()
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_prometheus_and_grafana_find_each_other_and_the_replicas() -> None:
    folder = ROOT / "deploy"
    asked: Any = yaml.safe_load((folder / "prometheus" / "prometheus.yml").read_text())
    (job,) = asked["scrape_configs"]
    (replicas,) = job["dns_sd_configs"]
    assert (replicas["names"], str(replicas["port"])) == (["narrows"], instruction("EXPOSE"))
    assert job["authorization"]["credentials_file"] in SERVICES["prometheus"]["command"][0]
    assert all((folder / "prometheus" / name).is_file() for name in asked["rule_files"])
    provisioning = folder / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert URL(source["url"]).host in SERVICES
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "narrows.yml").read_text())["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(provider["options"]["path"] + "/")
    assert f"./grafana/{DASHBOARD['uid']}.json:{home}:ro" in SERVICES["grafana"]["volumes"]
    for service in ("prometheus", "grafana"):
        files = [volume.split(":")[0] for volume in SERVICES[service]["volumes"] if volume.startswith("./")]
        assert all((folder / name).exists() for name in files)
