"""What is installed: one package, whose parts import each other by its name."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir")
    subprocess.run([sys.executable, *words, folder, ROOT], check=True)
    (wheel,) = folder.glob("narrows-*.whl")
    return wheel


def test_a_wheel_has_one_package_and_nothing_that_is_in_anybodys_way(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"narrows"}
    assert {"narrows/py.typed", "narrows/proxy/drawing/page.css", "narrows/policies/compact.py"} <= set(names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_an_installed_narrows_runs_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    script = f"""
import sys
from pathlib import Path
here = Path({str(ROOT)!r})
sys.path[:] = [{str(tmp_path / "installed")!r}, *(each for each in sys.path if Path(each) != here)]
sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "_Alias"]
from narrows.proxy.console.cli import main
main(["presets"])
main(["replay", {str(ROOT / "proxy/lab/sessions/write_once.json")!r}])
from narrows.proxy.kernel import cold
exec(cold._PROGRAM.partition(";")[0])
assert not [name for name in sys.modules if name.partition(".")[0] in ("proxy", "policies")]
"""
    alone = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-S", "-c", script], env=alone, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "adaptive" in done.stdout


def test_in_an_editable_installation_both_names_mean_the_same() -> None:
    assert import_module("narrows.policies.compact") is import_module("policies.compact")
    assert import_module("narrows.proxy.console.cli") is import_module("proxy.console.cli")
