"""The house rules that a linter does not know: names that say what a thing is, sizes, and what `narrows serve` loads.

`python -m tests.test_house` prints the figures beside their limits; with a folder, those of the tree there.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tests import limits
from tests.kit.house import Tree
from tests.kit.paths import ROOT
from tests.limits import LIMITS

TREE = Tree()

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
    names = ((file, name, line) for file, tree in TREE.parsed.items() for name, line in named(tree))
    return [each for each in names if PARTICIPLE.fullmatch(each[1])]


def doubles() -> dict[str, list[str]]:
    """Class names that stand in several files, and these files."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for file, tree in TREE.parsed.items():
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


def test_no_figure_is_above_its_limit() -> None:
    figures = TREE.figures()
    assert not {name: figure for name, figure in figures.items() if figure > LIMITS[name].value}
    assert {*figures, *limits.PATH} == {*LIMITS}  # those of the path: tests/kernel/test_path.py


@pytest.mark.parametrize(
    ("figure", "name"),
    [
        (TREE.lines, limits.FILE),
        (TREE.functions(), limits.FUNCTION),
        (TREE.positional(), limits.POSITIONAL),
    ],
    ids=["file", "function", "constructor"],
)
def test_none_is_too_long_to_read(figure: Mapping[str, int], name: str) -> None:
    assert not {where: size for where, size in figure.items() if size > LIMITS[name].value}


# --- what runs ---


def test_serving_does_not_load_the_lab() -> None:
    load = "import sys, proxy.console.cli, proxy.console.serve, proxy.app"
    script = f"{load}; print(*(name for name in sys.modules if name.startswith('proxy.lab')))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.split() == []


def _table(tree: Tree) -> Iterator[str]:
    """Each figure with what it is, its limit and its target."""
    figures = {**tree.path_figures(), **tree.figures()}
    yield f"{'figure':52}{'now':>8}{'limit':>8}{'target':>8}"
    for name, limit in LIMITS.items():
        yield f"{name:52}{figures.get(name, '-'):>8}{limit.value:>8}{limit.target:>8}"


if __name__ == "__main__":
    print(*_table(Tree(Path(sys.argv[1]).resolve()) if sys.argv[1:] else TREE), sep="\n")
