"""The house rules that a linter does not know: names that say what a thing is, sizes, and what `narrows serve` loads.

`python -m tests.test_house` prints the figures.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import pytest
from hypothesis import settings

from tests.kit.paths import ROOT

FILES = sorted(
    path.relative_to(ROOT).as_posix() for folder in ("policies", "proxy") for path in (ROOT / folder).rglob("*.py")
)


@cache
def trees() -> Mapping[str, ast.Module]:
    """The sources, parsed, by file."""
    return {file: ast.parse((ROOT / file).read_text(encoding="utf-8")) for file in FILES}


# --- names ---

PARTICIPLE = re.compile(r"_?(said|told|made|found|known|kept|asked|shown|taken|given|unsaid)")
"""Words that say what happened to a thing and not what it is: `text`, `record`, `result`, `cached` say that."""
MOST_PARTICIPLES = 100
PARTICIPLES: Mapping[tuple[str, str], str] = {}
"""Where one of them stays, by file and name, and why: at most MOST_PARTICIPLES uses in all. There is none today."""

DIALECTS = re.compile(r"(policies/dialects|proxy/lab/provider)/\w+/\w+\.py")
"""The packages of one API each: the same idea has the same name in each."""
DOUBLES: Mapping[str, str] = {}
"""Class names that stand in several files outside these packages, and why. There is none today."""


def named(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names of variables, attributes and parameters, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def participles() -> list[tuple[str, str, int]]:
    """File, name and line of each participle that names something."""
    return [
        (file, name, line) for file, tree in trees().items() for name, line in named(tree) if PARTICIPLE.fullmatch(name)
    ]


def doubles() -> dict[str, list[str]]:
    """Class names that stand in several files, and these files."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for file, tree in trees().items():
        for name in {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}:
            files[name].append(file)
    return {name: where for name, where in files.items() if len(where) > 1}


def test_no_participle_is_a_name() -> None:
    uses = participles()
    assert not [f"{file}:{line} {name}" for file, name, line in uses if (file, name) not in PARTICIPLES]
    assert len(uses) <= MOST_PARTICIPLES
    assert not PARTICIPLES.keys() - {(file, name) for file, name, _ in uses}, "exceptions that nothing needs"


def test_no_property_has_a_deadline() -> None:
    assert settings().deadline is None


def test_no_class_name_has_two_meanings() -> None:
    twice = {name: where for name, where in doubles().items() if not all(map(DIALECTS.fullmatch, where))}
    assert twice.keys() == DOUBLES.keys(), twice


# --- sizes ---

MOST_LINES, LONGEST_FILE, LONGEST_FUNCTION, MOST_MODULES, MOST_POSITIONAL = 57_925, 400, 60, 11, 6
"""The newest 4,600 lines are `narrows load` (1,400), several workers (700), a process for large replays, snapshots for
who takes over, and caches by conversation. What comes next has to fit, or to replace something."""


def lines() -> dict[str, int]:
    """Lines of each file."""
    return {file: (ROOT / file).read_text(encoding="utf-8").count("\n") for file in FILES}


def long_functions() -> Iterator[str]:
    """Functions of more than LONGEST_FUNCTION lines, from `def` to their end."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    yield f"{file}:{node.lineno} {node.name} {length}"


def positional_calls() -> Iterator[str]:
    """Constructors that are given more than MOST_POSITIONAL arguments by position."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name == "cls" or name.lstrip("_")[:1].isupper():
                    yield f"{file}:{node.lineno} {name} {len(node.args)}"


def flat_modules() -> list[str]:
    """Modules that stand in `proxy/` itself."""
    return sorted(path.name for path in (ROOT / "proxy").glob("*.py") if path.name != "__init__.py")


def test_the_source_is_not_longer_than_it_has_to_be() -> None:
    assert sum(lines().values()) <= MOST_LINES


@pytest.mark.parametrize("file", FILES)
def test_no_file_is_too_long_to_read(file: str) -> None:
    assert lines()[file] <= LONGEST_FILE


def test_no_function_is_too_long_to_read() -> None:
    assert not list(long_functions())


def test_constructors_with_many_arguments_are_called_by_keyword() -> None:
    assert not list(positional_calls())


def test_rooms_and_not_a_flat_folder() -> None:
    assert len(flat_modules()) <= MOST_MODULES


# --- what runs ---


def test_serving_does_not_load_the_lab() -> None:
    script = "import sys, proxy.cli, proxy.app; print(*(name for name in sys.modules if name.startswith('proxy.lab')))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.split() == []


def _figures() -> Iterable[tuple[str, object]]:
    by_file: defaultdict[str, int] = defaultdict(int)
    for file, _, _ in participles():
        by_file[file] += 1
    yield "participles", sum(by_file.values())
    yield "by file", dict(sorted(by_file.items(), key=lambda each: -each[1]))
    yield "class names in several files", doubles()
    yield "lines", sum(lines().values())
    yield "longest files", sorted(lines().items(), key=lambda each: -each[1])[:5]
    yield "long functions", list(long_functions())
    yield "many arguments by position", list(positional_calls())
    yield "flat modules in proxy/", flat_modules()


if __name__ == "__main__":
    for figure, value in _figures():
        print(f"{figure}: {value}")
