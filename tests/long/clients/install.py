"""The clients' packages, each set in an environment of its own below .clients, with what npm has beside it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.long.clients.client import CACHE, Package

MINUTES = 15
_UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
_VERSION = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"


class NotInstalledError(Exception):
    """Why a client cannot be tried, in one line."""


def install(package: Package, anew: bool = False) -> str:
    """Install what is not there; the version of its first package. Raises NotInstalledError."""
    version = installed(package)
    if version and not anew:
        return version
    if package.unaccepted:
        what = f"{package.unaccepted} have to be accepted first, by a person"
        raise NotInstalledError(f"{what}: then `npm install --prefix .clients {package.names[0]}`, and again")
    if package.index == "npm":
        _run(package, [_found("npm"), "install", "--prefix", str(CACHE), "--silent", "--no-audit", "--no-fund"])
    else:
        environment = str(package.environment)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=60 * MINUTES)
        pip = (
            [_UV, "pip", "install", "--python", f"{environment}/bin/python"]
            if _UV
            else [f"{environment}/bin/pip", "install"]
        )
        _run(package, [*pip, "--quiet"])
    return installed(package) or _fail(f"{package.names[0]} is not there after it was installed")


def installed(package: Package) -> str:
    """The version of its first package; empty where that is not installed."""
    if package.index == "npm":
        manifest = CACHE / "node_modules" / package.names[0] / "package.json"
        is_whole = all((CACHE / "node_modules" / name).exists() for name in package.names)
        return str(json.loads(manifest.read_bytes())["version"]) if is_whole else ""
    python = package.environment / "bin" / "python"
    if not python.exists():
        return ""
    name = package.names[0].partition("[")[0]
    done = subprocess.run([str(python), "-c", _VERSION, name], check=False, capture_output=True, text=True)
    return done.stdout.strip()


def _run(package: Package, command: list[str]) -> None:
    done = subprocess.run([*command, *package.names], check=False, capture_output=True, text=True, timeout=60 * MINUTES)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        _fail(f"{' '.join(package.names)} could not be installed: {' '.join(last)}")


def _found(program: str) -> str:
    return shutil.which(program) or _fail(f"{program} is not installed")


def _fail(why: str) -> str:
    raise NotInstalledError(why)
