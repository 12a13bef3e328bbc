"""The files of deploy/ that other programs read, each read by its program: kubectl makes the objects of the
kustomization, and their schemas hold; systemd takes the unit; nginx and Caddy stand before two replicas. Part of
`make deploy-test`.
"""

import asyncio
import datetime
import ipaddress
import json
import os
import re
import subprocess
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from proxy.config import Settings
from proxy.lab.provider import Send
from tests.kit.redis_servers import Park, free_ports
from tests.kit.settings import settings_with
from tests.kit.stage import staged
from tests.long.deployed import CHAT, DEPLOY, Replica, Team, program

BALANCERS = DEPLOY / "balancers"


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """What is applied to a cluster, by kind."""
    words = [program("kubectl"), "kustomize", DEPLOY / "kubernetes"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}


def test_kubernetes_takes_every_object(objects: dict[str, Any]) -> None:
    kinds = {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    assert objects.keys() == kinds
    for each in objects.values():
        kubernetes_validate.validate(each, "1.30", strict=True)
        assert each["metadata"]["namespace"] == "narrows"


def test_a_replica_in_a_cluster_is_told_what_the_image_and_the_settings_are(objects: dict[str, Any]) -> None:
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text()
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    (port,) = container["ports"]
    assert f"USER {user}\n" in dockerfile
    assert f"NARROWS_PORT={port['containerPort']} " in dockerfile
    assert container["args"][0] == "serve"
    (name,) = objects["ConfigMap"]["data"]
    assert container["args"][2] == f"/etc/narrows/{name}"
    assert set(tomllib.loads(objects["ConfigMap"]["data"][name])) <= set(Settings.model_fields)
    settings = settings_with(["--config", str(DEPLOY / "kubernetes" / name)])
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + settings.grace
    assert {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        port["name"]
    }


def test_systemd_takes_the_unit_and_finds_little_that_it_may_do(tmp_path: Path) -> None:
    unit = tmp_path / "narrows.service"
    unit.write_text((DEPLOY / "narrows.service").read_text().replace("/opt/narrows/bin/narrows", "/usr/bin/env"))
    for words in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run([program("systemd-analyze"), *words, unit], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of this machine's address for an hour, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encodings = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "narrows.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "narrows.key").write_bytes(key.private_bytes(*encodings))
    return folder / "narrows.pem", folder / "narrows.key"


def nginx(folder: Path, port: int) -> list[str]:
    """The command for nginx with its recipe, but for addresses and the certificate."""
    public, private = certificate(folder)
    text = (BALANCERS / "nginx.conf").read_text().replace("listen 443", f"listen 127.0.0.1:{port}")
    text = text.replace("/etc/ssl/narrows.pem", str(public)).replace("/etc/ssl/narrows.key", str(private))
    paths = "".join(f"{each}_temp_path {folder};\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    whole = f"events {{}}\nhttp {{\naccess_log off;\n{paths}{text}}}\n"
    (folder / "nginx.conf").write_text(f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n{whole}")
    return [program("nginx"), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]


def caddy(folder: Path, port: int) -> list[str]:
    """The command for Caddy with its recipe, likewise."""
    public, private = certificate(folder)
    text = (BALANCERS / "Caddyfile").read_text()
    text = text.replace("narrows.example.com {", f"https://127.0.0.1:{port} {{\n\ttls {public} {private}")
    whole = f"{{\n\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system {folder}\n}}\n{text}"
    (folder / "Caddyfile").write_text(whole)
    return [program("caddy"), "run", "--adapter", "caddyfile", "--config", f"{folder}/Caddyfile"]


@contextmanager
def balanced(words: Sequence[str], folder: Path, replicas: Sequence[Replica]) -> Iterator[None]:
    """A balancer before these replicas, in the place of those that its recipe names."""
    config = Path(words[-1])
    addresses = {f"127.0.0.1:{8787 + at}": f"127.0.0.1:{each.port}" for at, each in enumerate(replicas)}
    config.write_text(re.sub(r"127\.0\.0\.1:878\d", lambda found: addresses[found[0]], config.read_text()))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)})
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=[nginx, caddy])
async def team(request: pytest.FixtureRequest, servers: Park, tmp_path: Path) -> AsyncIterator[Team]:
    """Two replicas on one Redis behind the balancer of a recipe."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(tmp_path / "unused.db"))
        redis = servers.server()
        *ports, port = free_ports(3)
        replicas = [Replica(each, stage.upstream, redis.url) for each in ports]
        for replica in replicas:
            stack.callback(replica.kill)
        stack.enter_context(balanced(request.param(tmp_path, port), tmp_path, replicas))
        team = Team(stage, f"https://127.0.0.1:{port}", replicas, redis)
        team.stage.client.connector._ssl = False  # nobody has signed the certificate
        await team.up()
        yield team


async def test_a_named_conversation_stays_with_one_replica_and_goes_on_where_that_dies(team: Team) -> None:
    assert [await team.asks("a") for _ in range(4)] == ["first", *["extended"] * 3]
    served = [await team.requests(replica) for replica in team.replicas]
    assert sorted(served) == [0, 4]
    await asyncio.sleep(0.5)  # what was sent is stored behind the requests
    team.replicas[served.index(4)].kill()
    await asyncio.sleep(2.5)  # until Caddy has noticed; nginx asks the other one at once
    assert [await team.asks("a") for _ in range(4)] == ["extended"] * 4


async def test_a_stream_goes_on_as_it_comes(team: Team) -> None:
    gate = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
        await gate.wait()
        yield b"data: [DONE]\n\n"

    team.stage.provider.answer = lambda _: Send(body=pieces(), headers=(("Content-Type", "text/event-stream"),))
    body = {"model": "m", "messages": team.messages, "stream": True}
    async with team.stage.client.post(team.url + CHAT, json=body) as reply, asyncio.timeout(60):
        assert b"one" in await reply.content.readany()
        gate.set()
        assert (await reply.content.read()).endswith(b"data: [DONE]\n\n")


async def test_who_comes_through_a_balancer_is_not_this_machine(team: Team) -> None:
    async with team.stage.client.get(f"{team.url}/metrics") as reply:
        assert reply.status == 403
        assert json.loads(await reply.read())["error"]["code"] == "forbidden"
