"""What is installed: one package, `narrows`, with `proxy` and `policies` inside it.

In the repository these two folders stand at the top and are imported by their own names. Where Narrows is installed,
top packages of such names would be in the way of others: so a wheel has them below `narrows`, with their imports of
each other rewritten. An editable installation leaves the files where they are, and makes `narrows.proxy` another name
of `proxy`.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDERS = ("proxy", "policies")
_IMPORT = re.compile(rf"^(\s*(?:from|import)\s+)({'|'.join(_FOLDERS)})(?=[.\s])", re.MULTILINE)
_ALIAS = '''"""Another name for the packages of an editable installation: `narrows.policies` is `policies`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Alias(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith(f"{__name__}.") else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(module.__name__.removeprefix(f"{__name__}."))


sys.meta_path.insert(0, _Alias())
'''


class CustomBuildHook(BuildHookInterface[Any]):
    """Called by hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._made = Path(tempfile.mkdtemp())
        (self._made / "py.typed").touch()
        if version == "editable":
            (self._made / "__init__.py").write_text(_ALIAS, encoding="utf-8")
            self._write_stubs()
            build_data["force_include_editable"][str(self._made)] = "narrows"
            return
        for folder in _FOLDERS:
            target = self._made / folder
            shutil.copytree(
                Path(self.root) / folder,
                target,
                ignore=shutil.ignore_patterns("__pycache__", "README.md", "reference", "*.svg"),
            )
            for file in target.rglob("*.py"):
                text = file.read_text(encoding="utf-8")
                file.write_text(_IMPORT.sub(r"\1narrows.\2", text), encoding="utf-8")
        (self._made / "__init__.py").write_text("", encoding="utf-8")
        build_data["force_include"][str(self._made)] = "narrows"

    def _write_stubs(self) -> None:
        """For type checkers, to which no finder of modules means anything."""
        for file in (Path(self.root) / "policies").rglob("*.py"):
            place = file.relative_to(self.root)
            stub = (self._made / place).with_suffix(".pyi")
            stub.parent.mkdir(parents=True, exist_ok=True)
            name = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
            stub.write_text(f"from {name} import *\n", encoding="utf-8")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._made)
