"""The reference pages: as the code is now, with a meaning for each header and each code of an error."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.config import Settings
from proxy.config.settings import GROUPS
from proxy.kernel.receive import SESSIONS
from tests.docs.reference import FOLDER, WRITERS
from tests.docs.reference.errors import CODES
from tests.docs.reference.headers import CHECKPOINTS, CLIENTS, REPLY, REQUEST, WARNINGS
from tests.docs.reference.metrics import NOTES, WORKERS, metrics
from tests.kit.paths import ROOT

SOURCES = [path for path in sorted((ROOT / "proxy").rglob("*.py")) if "lab" not in path.relative_to(ROOT).parts]
SOURCE = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
POLICIES = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "policies").rglob("*.py")))
HEADERS = {name.partition(":")[0] for name, _ in (*REQUEST, *REPLY)}
VARIABLE = re.compile("[A-Z]+|91")
"""In the name of a code or a warning: what differs from case to case."""


@pytest.mark.parametrize("path", WRITERS, ids=lambda path: path.name)
def test_the_page_says_what_the_code_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == WRITERS[path](), "run `make reference`"


def test_there_is_no_other_page() -> None:
    assert {*FOLDER.iterdir()} == {*WRITERS}


def test_every_setting_is_in_one_group() -> None:
    assert [name for group in GROUPS for name in group.model_fields] == [*Settings.model_fields]


def test_each_header_of_the_code_has_a_meaning_and_no_other() -> None:
    headers = set(re.findall(r"\"(x-narrows(?:-[a-z]+)*)\"", SOURCE))
    assert headers == HEADERS


def test_each_header_in_which_a_client_names_its_conversation_is_named() -> None:
    names = [name for row in SESSIONS for name in row if name]
    assert names == re.findall(r"`(x-[a-z-]+)`", " ".join(text for _, text in CLIENTS))


def test_each_warning_is_one_that_the_code_gives() -> None:
    assert not [word for word, _ in WARNINGS if f'"{VARIABLE.split(word)[0]}' not in SOURCE]


def test_each_reason_of_a_checkpoint_has_a_meaning() -> None:
    reasons = set(re.findall(r"\"checkpoint:([a-z-]+)\"", SOURCE + POLICIES))
    assert reasons == {reason for reason, _ in CHECKPOINTS}


def _errors() -> Iterator[tuple[str, str]]:
    """Status and code of each error whose code stands in the call that makes it, or in a table of errors; the status
    is empty where it is computed."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("ApiError", "FailedError"):
                status, _, code = (getattr(each, "value", "") for each in node.args[:3])
            elif isinstance(node, ast.Tuple) and len(node.elts) == 4:
                status, code = (getattr(each, "value", "") for each in node.elts[1:3])
                if not isinstance(status, int) or not isinstance(code, str):
                    continue
            else:
                continue
            if isinstance(code, str) and code:
                yield str(status) if isinstance(status, int) else "", code


def test_each_code_of_an_error_has_its_status_and_a_meaning() -> None:
    statuses = {code: re.split(", ", status) for status, code, _ in CODES}
    errors = set(_errors())
    assert {("403", "forbidden"), ("413", "body_too_large"), ("502", "upstream_tls")} <= errors
    assert not [(status, code) for status, code in errors if code not in statuses]
    assert not [(status, code) for status, code in errors if status and not {status, "4xx"} & {*statuses[code]}]


@pytest.mark.parametrize("code", [code for _, code, _ in CODES])
def test_each_code_that_is_described_can_come(code: str) -> None:
    assert re.search(rf'"{VARIABLE.split(code)[0]}["{{]', SOURCE)


def test_each_note_is_about_a_metric_and_each_metric_is_there() -> None:
    names = [name for name, *_ in metrics()]
    assert len(names) == len(set(names)) > 40
    assert not NOTES.keys() - names
    assert f'"{WORKERS[0]}", "{WORKERS[2].partition(";")[0]}' in SOURCE
