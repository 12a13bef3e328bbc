"""The figures of a source tree: sizes, names and rooms, read from its files, and the path of a request, run in it."""

import ast
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from tests import limits
from tests.kit.paths import ROOT
from tests.limits import LIMITS

_WALKER = ROOT / "tests" / "kernel" / "test_path.py"
_LAB = "proxy/lab/"
_APIS = frozenset({"openai_chat", "openai_responses", "anthropic_messages"})
_CACHES = frozenset({"LRUCache", "TTLCache", "OrderedDict"})
_CONVERSATIONS = frozenset({"Key", "Place"})
"""Types of the keys by which something of one conversation is looked up."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Tree:
    """The source below a folder, `proxy` and `policies`."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        paths = [path for folder in ("policies", "proxy") for path in (root / folder).rglob("*.py")]
        self.files = sorted(path.relative_to(root).as_posix() for path in paths)

    @cached_property
    def parsed(self) -> Mapping[str, ast.Module]:
        """The sources, parsed, by file."""
        return {file: ast.parse((self.root / file).read_text(encoding="utf-8")) for file in self.files}

    @cached_property
    def lines(self) -> Mapping[str, int]:
        """Lines of each file."""
        return {file: (self.root / file).read_text(encoding="utf-8").count("\n") for file in self.files}

    @cached_property
    def measuring(self) -> frozenset[str]:
        """The files of the lab, and those that nothing else imports."""
        importers: defaultdict[str, set[str]] = defaultdict(set)
        for file, tree in self.parsed.items():
            for module in _imports(tree):
                importers[module].add(file)
        measuring = {file for file in self.files if file.startswith(_LAB)}
        while True:
            by_file = {file: importers[_module(file)] - {file} for file in self.files if file not in measuring}
            more = {file for file, users in by_file.items() if users and users <= measuring}
            if not more:
                return frozenset(measuring)
            measuring |= more

    def nodes(self, with_lab: bool = True) -> Iterator[tuple[str, ast.AST]]:
        """Every node of every file."""
        for file, tree in self.parsed.items():
            if with_lab or not file.startswith(_LAB):
                for node in ast.walk(tree):
                    yield file, node

    def methods(self) -> dict[str, int]:
        """How many methods each class has, by file and name."""
        classes = ((file, node) for file, node in self.nodes() if isinstance(node, ast.ClassDef))
        return {f"{file} {node.name}": _methods_of(node) for file, node in classes}

    def functions(self) -> dict[str, int]:
        """The lines of each function, from `def` to its end."""
        return {
            f"{file}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
            for file, node in self.nodes()
            if isinstance(node, _FUNCTIONS)
        }

    def positional(self) -> dict[str, int]:
        """How many arguments constructors are given by position."""
        counts: dict[str, int] = {}
        for file, node in self.nodes():
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name == "cls" or name.lstrip("_")[:1].isupper():
                    counts[f"{file}:{node.lineno} {name}"] = len(node.args)
        return counts

    def fields(self, name: str) -> int:
        """How many fields the class of this name has."""
        bodies = (node.body for _, node in self.nodes() if isinstance(node, ast.ClassDef) and node.name == name)
        return sum(isinstance(each, ast.AnnAssign) for body in bodies for each in body)

    def caches(self) -> list[str]:
        """Where a cache is declared whose keys name a conversation."""
        return [f"{file}:{node.lineno}" for file, node in self.nodes(False) if _is_cache_by_conversation(node)]

    def modes(self) -> list[str]:
        """Comparisons of something that is called `mode`."""
        return [
            f"{file}:{node.lineno}"
            for file, node in self.nodes(False)
            if isinstance(node, ast.Compare)
            and any(getattr(side, "attr", getattr(side, "id", "")) == "mode" for side in (node.left, *node.comparators))
        ]

    def api_names(self) -> dict[str, int]:
        """Files that hold the name of an API's package, or import from one, outside these packages."""
        uses = (file for file, node in self.nodes(False) if not _APIS & {*file.split("/")} and _names_api(node))
        return dict(Counter(uses))

    def contract(self) -> int:
        """The methods of the protocols that together are a store."""
        classes = [node for _, node in self.nodes(False) if isinstance(node, ast.ClassDef)]
        protocols = [node for node in classes if "Protocol" in map(ast.unparse, node.bases)]
        return sum(_methods_of(node) for node in protocols if node.name.endswith("Store"))

    @cached_property
    def words(self) -> Mapping[str, int]:
        """Words of each page of the manual, its reference too."""
        pages = [path for path in (self.root / "proxy").rglob("*.md") if path.parent.name != "prompts"]
        return {path.relative_to(self.root).as_posix(): len(path.read_text("utf-8").split()) for path in pages}

    def flat_modules(self) -> list[str]:
        """Modules that stand in `proxy/` itself."""
        return sorted(path.name for path in (self.root / "proxy").glob("*.py") if path.name != "__init__.py")

    def figures(self) -> dict[str, int]:
        """Each figure that has a limit, but for those of the path."""
        methods = self.methods()
        stores = {name: count for name, count in methods.items() if name.endswith("Store")}
        others = {name: count for name, count in methods.items() if name not in stores}
        large = [count for count in stores.values() if count > LIMITS[limits.STORE_METHODS].target]
        large += [count for count in others.values() if count > LIMITS[limits.METHODS].target]
        return {
            limits.CACHES: len(self.caches()),
            limits.MODES: len(self.modes()),
            limits.CLIENT_FIELDS: self.fields("ClientRequest"),
            limits.UPSTREAM_FIELDS: self.fields("UpstreamRequest"),
            limits.METHODS: max(others.values()),
            limits.STORE_METHODS: max(stores.values()),
            limits.LARGE_CLASSES: len(large),
            limits.CONTRACT: self.contract(),
            limits.API_NAMES: len(self.api_names()),
            limits.LINES: sum(self.lines.values()),
            limits.PRODUCT_LINES: sum(count for file, count in self.lines.items() if file not in self.measuring),
            limits.FILE: max(self.lines.values()),
            limits.FUNCTION: max(self.functions().values()),
            limits.MODULES: len(self.flat_modules()),
            limits.POSITIONAL: max(self.positional().values()),
            limits.WORDS: self.words["proxy/README.md"],
            limits.MANUAL_WORDS: sum(self.words.values()),
            limits.PAGE_WORDS: max(words for page, words in self.words.items() if page.endswith("README.md")),
        }

    def path_figures(self) -> dict[str, int]:
        """Those of the path, from requests that run in this tree; none where it cannot run them."""
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        words = [sys.executable, str(_WALKER), "--json"]
        run = subprocess.run(words, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        return dict(zip(limits.PATH, json.loads(run.stdout), strict=True)) if run.returncode == 0 else {}


def _methods_of(node: ast.ClassDef) -> int:
    return sum(isinstance(each, _FUNCTIONS) for each in node.body)


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(tree: ast.Module) -> Iterator[str]:
    """The modules that are imported, and what is imported from them: that may be modules, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_cache_by_conversation(node: ast.AST) -> bool:
    if not isinstance(node, ast.Subscript) or getattr(node.value, "id", "") not in _CACHES:
        return False
    key = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
    return any(getattr(each, "id", "") in _CONVERSATIONS for each in ast.walk(key))


def _names_api(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return bool(_APIS & {*(node.module or "").split("."), *(alias.name for alias in node.names)})
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _APIS
