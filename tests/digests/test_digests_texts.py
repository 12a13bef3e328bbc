"""Digests of JSON and of HTML."""

import json

import pytest

from policies.digests import digested
from policies.tools import ToolKind
from tests.kit.talk import letters

NONE = frozenset[str]()
ROWS = [{"id": 1000 + i, "name": f"user_{i}", "active": i % 3 == 0, "score": i * 1.5} for i in range(60)]


def test_m10_objects_with_the_same_keys_become_a_table_that_loses_nothing() -> None:
    text = json.dumps(ROWS, indent=2)
    shown = digested(text, "data", letters(text) // 2, NONE, letters).splitlines()
    assert shown[0] == ('[60 objects, values of each of {"id": number, "name": str, "active": bool, "score": number}]')
    assert [dict(zip(ROWS[0], json.loads(row), strict=True)) for row in shown[1:]] == ROWS


ODD = [dict(row) for row in ROWS]
ODD[20]["score"] = 99999.5
ODD[30]["error"] = "disk is full"
ODD[31]["error"] = None
ODD[40] = {"id": 1040}


@pytest.mark.parametrize("lines", [False, True], ids=["an array in an object", "one a line"])
def test_m10_the_first_the_last_odd_rows_and_errors_stay_as_they_stand(lines: bool) -> None:
    text = "\n".join(map(json.dumps, ODD)) if lines else json.dumps({"total": 60, "items": ODD})
    shown = digested(text, "data", 330, NONE, letters)
    for row in (0, 20, 30, 31, 40, 59):
        assert json.dumps(ODD[row]) in shown
    assert json.dumps(ODD[10]) not in shown
    assert '60 objects, of {"id": number, "name": str (59), "active": bool (59), "score": number (59), ' in shown
    assert '"error": null|str (2)}' in shown


def test_m10_an_error_that_is_none_is_no_error_and_what_was_mentioned_is_shown() -> None:
    rows = [{"id": i, "error": None, "note": f"note_{i} which is not that short"} for i in range(80)]
    rows[44]["error"] = "refused: failed"
    shown = digested(json.dumps(rows), "data", 90, frozenset({"note_61"}), letters).splitlines()
    assert shown[1] == '[0, null, "note_0 which is not that short"]'
    assert {
        '[44, "refused: failed", "note_44 which is not that short"]',
        '[61, null, "note_61 which is not that short"]',
    } <= {*shown}


def test_m10_rows_whose_error_is_nothing_do_not_hide_the_one_that_failed() -> None:
    rows = [{"id": i, "error": None if i % 2 else "", "note": "nothing to see in this one"} for i in range(80)]
    rows[60] = {"id": 60, "error": "disk is full", "note": "nothing to see in this one"}
    rows[3]["more"] = 1
    shown = digested(json.dumps(rows), "data", 130, NONE, letters)
    assert json.dumps(rows[60]) in shown
    assert json.dumps(rows[1]) not in shown


def test_m10_values_stand_as_they_were_written() -> None:
    values = ["123456789012345678901234567890", "1.0E+5", '"\\ud800 \\u00e9 \\/"', "-0.0", '{"a": 1, "a": 2}']
    filler = ",\n".join(f'{{"n": {i},   "v": "of no interest at all"}}' for i in range(60))
    for value in values:
        for end in ("", "\n"):
            shown = digested(f'[{{"n": 0, "v": [{value},{end} 1]}},\n{filler}]', "data", 160, NONE, letters)
            assert value in shown
    twice = ",\n".join(f'{{"n": {i}, "n": "of no interest at all"}}' for i in range(60))
    shown = digested(f"[{twice}]", "data", 160, NONE, letters)
    assert '{"n": 0, "n": "of no interest at all"}' in shown


def test_m10_a_long_string_is_shown_line_by_line_and_the_status_stays() -> None:
    out = "one\nValueError: bad\n" + "progress, and more of it\n" * 60
    text = json.dumps({"stdout": out, "exit_code": 3, "cwd": "/src"})
    shown = digested(text, "command", 60, NONE, letters)
    assert "ValueError: bad\\n\n" in shown
    assert '"exit_code": 3\n' in shown


def test_m10_numbers_are_shown_in_runs() -> None:
    shown = digested(json.dumps([*range(900)]), "data", 100, NONE, letters)
    assert shown.startswith("[\n0, 1, 2, 3,")
    assert shown.endswith("898, 899\n]\n")


def test_m10_json_keeps_what_stands_around_it_and_files_keep_their_lines() -> None:
    text = f"<returncode>1</returncode>\n<output>\n{json.dumps(ROWS)}\n</output>"
    shown = digested(text, "command", 200, NONE, letters)
    assert shown.startswith("<returncode>1</returncode>\n<output>\n[60 objects, values of each of ")
    assert shown.endswith("\n</output>\n")
    pretty = json.dumps(ROWS, indent=2)
    assert digested(pretty, "file", 200, NONE, letters).startswith('[\n  {\n    "id": 1000,\n')


PAGE = (
    "<!DOCTYPE html><html><head><title>Release notes</title><style>b{}</style></head><body><!-- <p>never</p> -->"
    '<nav><a href="/">Home</a></nav><h1>Version\n 4.2</h1><p>This <b>release</b> fixes 3 &lt; 4 &amp; adds.</p><ul>'
    + "".join(f'<li class="entry-{i}">Fix <a href="/issue/{i}">number {i}</a></li>' for i in range(40))
    + "</ul><table><tr><th>a</th><td>b</td></tr></table><script>if (1 < 2) { never() }</script></body></html>"
)


@pytest.mark.parametrize("kind", ["web", "command"])
def test_m10_a_page_is_its_words(kind: ToolKind) -> None:
    shown = digested(PAGE, kind, 150, NONE, letters)
    assert shown.startswith(
        "Release notes\nHome\n# Version 4.2\nThis release fixes 3 < 4 & adds.\n- Fix number 0\n- Fix number 1\n"
    )
    assert shown.endswith("- Fix number 39\na | b")
    assert "never" not in shown


def test_m10_a_file_that_is_a_page_stays_markup() -> None:
    assert digested(PAGE, "file", 150, NONE, letters).startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    "broken", ["&#" + "9" * 5_000 + ";", "<![if foo[<p>", "<!DOCTYPE [<!ENTITY a '&a;'>]>", "<!>" * 50]
)
def test_law_6_a_page_that_the_parser_stumbles_over_is_cut_like_any_text(broken: str) -> None:
    page = "<html><body>" + "<p>Hello, this is a page.</p>\n" * 200 + broken + "</body></html>"
    found = digested(page, "web", 60, frozenset(), letters)
    assert "this is a page" in found
    assert len(found) < len(page) // 4
