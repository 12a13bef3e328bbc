"""`make audit`: what Narrows is made of, and whether anything is known against it.

- The lock files are what pyproject.toml asks for, and each file in them has a hash.
- pip-audit asks PyPI for advisories on every locked package. What it could not ask for is counted and named: without
  that service nothing is known, and this says so instead of "no vulnerabilities".
- detect-secrets looks for credentials in all files; those of the tests are in .ci/secrets.baseline.
- cyclonedx writes a bill of materials of what the image installs: .audit/sbom.json.

Exit code 1 where a lock file does not fit, an advisory holds, or a credential is new.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.paths import ROOT

LOCKS = ("requirements.lock", ".ci/requirements.lock", "deploy/build.lock", ".ci/fuzz.lock")
LOCKED = re.compile(r"^([\w.-]+==[^ ]+)", re.MULTILINE)
BASELINE = Path(".ci/secrets.baseline")
REPORT = ROOT / ".audit"
TOOLS = Path(sys.executable).parent


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(TOOLS / words[0]), *map(str, words[1:])]
    environment = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def lock_files() -> list[str]:
    """They name what `make lock` would name. Hashes may differ: a package may get more files of the same version."""
    before = {name: (ROOT / name).read_text() for name in LOCKS}
    times = {name: ((status := (ROOT / name).stat()).st_atime, status.st_mtime) for name in LOCKS}
    relock = subprocess.run(["make", "--silent", "lock"], cwd=ROOT, capture_output=True, text=True)
    after = {name: (ROOT / name).read_text() for name in LOCKS}
    for name, text in before.items():  # with its time: make would take a newer one for a reason to install all again
        (ROOT / name).write_text(text)
        os.utime(ROOT / name, times[name])
    if relock.returncode:
        print(f"lock files      not compared: {(relock.stderr.strip().splitlines() or ['no answer'])[-1][:120]}")
        return []
    misfits = [name for name in LOCKS if LOCKED.findall(after[name]) != LOCKED.findall(before[name])]
    print(f"lock files      {len(LOCKS) - len(misfits)} of {len(LOCKS)} fit pyproject.toml")
    return [f"{name} is not what pyproject.toml asks for: run make lock" for name in misfits]


def advisories(lock: str) -> list[str]:
    """Those that hold for a locked package."""
    asked = run("pip-audit", "--requirement", lock, "--require-hashes", "--disable-pip", "--format", "json")
    try:
        packages: Sequence[dict[str, Any]] = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"advisories      not asked for: {(asked.stderr.strip().splitlines() or ['no answer'])[-1][:120]}")
        return []
    unasked = [package["name"] for package in packages if "skip_reason" in package]
    print(f"advisories      {len(packages) - len(unasked)} packages of {lock} asked for, {len(unasked)} not")
    if unasked:
        print(f"  not asked for: {', '.join(unasked)}")
    return [
        f"{package['name']} {package['version']}: {each['id']}, mended in {', '.join(each['fix_versions']) or 'none'}"
        for package in packages
        for each in package.get("vulns", ())
    ]


def credentials() -> list[str]:
    """What looks like one, in files that git has, and is not in the baseline."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in files.split("\0") if name and name not in (*LOCKS, str(BASELINE))]
    with tempfile.NamedTemporaryFile("w+", suffix=".baseline") as copy:  # the tool rewrites what it reads
        copy.write((ROOT / BASELINE).read_text())
        copy.flush()
        scan = run("detect-secrets-hook", "--baseline", copy.name, "--json", *names)
    print(f"credentials     {len(names)} files read")
    if scan.returncode in (0, 3):  # 3: lines of the baseline have moved
        return []
    try:
        results = json.loads(scan.stdout)["results"]
    except (ValueError, KeyError):
        return [f"detect-secrets: {(scan.stdout + scan.stderr).strip()[-500:]}"]
    return [f"{file}:{each['line_number']}: {each['type']}" for file, rows in results.items() for each in rows]


def bill_of_materials() -> list[str]:
    """Every package of the image with its hashes."""
    REPORT.mkdir(exist_ok=True)
    path = REPORT / "sbom.json"
    words = ("--pyproject", "pyproject.toml", "--output-reproducible", "--of", "JSON", "-o", path)
    written = run("cyclonedx-py", "requirements", LOCKS[0], *words)
    if written.returncode:
        return [f"cyclonedx-py: {written.stderr.strip()[-500:]}"]
    components = json.loads(path.read_text())["components"]
    print(f"materials       {len(components)} packages in {path.relative_to(ROOT)}")
    return []


def main() -> int:
    problems = [*lock_files(), *advisories(LOCKS[0]), *credentials(), *bill_of_materials()]
    print("\n".join(problems) or "no finding in what could be asked")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
