"""Installs the clients, lets each do its task in a process of its own, and prints a table."""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from tests.kit.paths import revision
from tests.long.clients.client import CACHE, Client, Package
from tests.long.clients.install import NotInstalledError, install
from tests.long.clients.leg import tried
from tests.long.clients.table import CLIENTS

REPORTS = CACHE / "reports"
LONGEST = 600
"""Seconds that a leg may take."""
LOOPBACK = 'ip link set lo up && exec "$@"'
APIS = {"openai_chat": "chat", "openai_responses": "responses", "anthropic_messages": "messages"}


def isolation() -> Sequence[str]:
    """What a command is put behind so that it has loopback and no other network; nothing where that cannot be."""
    for words in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        whole = [*words, "sh", "-c", LOOPBACK, "sh"]
        if (
            shutil.which("unshare")
            and not subprocess.run([*whole, "true"], check=False, capture_output=True).returncode
        ):
            return whole
    return []


def chosen(names: Sequence[str]) -> Iterator[int]:
    """The rows whose label has one of these words in it; all where none is named."""
    for number, client in enumerate(CLIENTS):
        if not names or any(name.lower() in client.label.lower() for name in names):
            yield number


def leg(number: int, behind: Sequence[str]) -> tuple[str, list[str]]:
    """Version and faults of a client. Raises NotInstalledError."""
    client = CLIENTS[number]
    versions = [install(package) for package in packages(client)]
    REPORTS.mkdir(parents=True, exist_ok=True)
    command = [*behind, sys.executable, "-m", "tests.long.clients", "--leg", str(number)]
    with (REPORTS / f"{number:02}.txt").open("w+") as report:
        try:
            done = subprocess.run(command, check=False, stdout=report, stderr=subprocess.STDOUT, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            return versions[0], [f"it did not end within {LONGEST} seconds"]
        report.seek(0)
        lines = report.read().splitlines()
    faults = [line.removeprefix("FAULT ") for line in lines if line.startswith("FAULT ")]
    return " / ".join(versions), faults or (["the leg broke: " + " ".join(lines[-3:])] if done.returncode else [])


def packages(client: Client) -> list[Package]:
    """What has to be installed, each once: a gateway first, because the row is about it."""
    every = [*(relay.package for relay in (client.front, client.behind) if relay), client.package]
    return [package for number, package in enumerate(every) if package not in every[:number]]


def main() -> int:
    """0 where every client that could be tried did its task."""
    parser = argparse.ArgumentParser(prog="make clients-test")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--leg", type=int)
    arguments = parser.parse_args()
    if arguments.leg is not None:
        faults = tried(CLIENTS[arguments.leg])
        print(*(f"FAULT {fault}" for fault in faults), sep="\n")
        return int(bool(faults))
    behind = isolation()
    table = Table("client", "version", "API", "result", "s")
    broken = 0
    for number in chosen(arguments.names):
        client, began = CLIENTS[number], time.monotonic()
        try:
            version, faults = leg(number, behind)
        except NotInstalledError as missing:
            version, faults, result = "", [], f"skipped: {missing}"
        else:
            result = faults[0][:500] if faults else "did its task"
        broken += bool(faults)
        how = f"{APIS[client.dialect]}, {'streamed' if client.streams else 'whole'}"
        table.add_row(client.label, version, how, result, f"{time.monotonic() - began:.0f}")
        print(f"{client.label} ({how}) {version}: {result}", flush=True)
    network = "loopback alone" if behind else "the network of this machine (no network namespaces here)"
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, revision {revision()}, with {network}")
    Console(width=160).print(table)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
