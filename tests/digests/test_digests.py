"""Digests: what matters in an output is still there when it is short, whatever the output holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.digests import digested
from policies.text.excerpt import ERROR
from policies.tools import HEAD, ToolKind
from tests import examples
from tests.kit.talk import letters

NONE = frozenset[str]()
KINDS: tuple[ToolKind, ...] = ("file", "search", "listing", "command", "data", "web")
SEEN = """x
Error: no λόγος
exit code 1
src/a.py:3: def f():
src/b.py-4-  return 1
src/deep/c.py
--
drwxr-xr-x 2 root root 4096 Apr 30 09:56 ast
├── a.py
│   └── 漢🙂.md
./lib:
total 8
a.txt

2026-01-02 10:00:00 INFO step 1 of 9
2026-01-02 10:00:07 INFO step 8 of 9
[3/9] building
WARN: old
diff --git a/x b/x
+++ b/x
@@ -1,2 +1,2 @@
+new
-old
 same
E   assert 1 == 2
Traceback (most recent call last):
  File "/a/site-packages/b.py", line 3, in c
  File "d.py", line 3
{"a": 1, "b": "x"}
{"a": 2, "b": "y"}
{"a": "\\ud800", "a": 3}
[1, 2
]
<div><p>one</p>
</div>
[...12 chars omitted...]
[narrows: rest: ref 482913]
src/a.py (12 hits)
same [x 12]"""
LINES = st.sampled_from(SEEN.splitlines())
TEXTS = st.one_of(
    st.lists(LINES, max_size=60).map("\n".join),
    st.lists(LINES, min_size=1, max_size=6).map(lambda lines: "\n".join(lines * 12)),
    st.text('[]{}":,1 ab\\\n<p/>🙂', max_size=300),
)


@settings(deadline=None, max_examples=examples(100))
@given(TEXTS, st.sampled_from(KINDS), st.integers(-20, 120), st.booleans())
def test_m10_nothing_grows_and_what_fits_is_untouched(text: str, kind: ToolKind, budget: int, mention: bool) -> None:
    said = frozenset({"x", "a.py", "src/a.py", "step"}) if mention else NONE
    short = digested(text, kind, budget, said, letters)
    assert len(short) <= len(text)
    assert short == text or letters(text) > budget
    assert short == digested(text, kind, budget, said, letters)
    short.encode()
    again = digested(short, kind, budget, said, letters)
    assert len(again) <= len(short)


NOISE = [f"step {i} of the build, which says little" for i in range(150)]
FAILURES = [f"ERROR: no. {'abcdefgh'[i]} went wrong in its own way" for i in range(8)]
FRAMED: dict[str, list[str]] = {
    "plain": [f"{chr(97 + i % 26)} word that is {'very ' * (i % 17)}much its own" for i in range(150)],
    "log": NOISE,
    "hits": [f"src/part_{i % 9}.py:{i}:  total = {i}" for i in range(150)],
    "listing": [f"src/part_{i % 9}/module_{i}.py" for i in range(150)],
    "traceback": ["Traceback (most recent call last):", *(f'  File "a_{i}.py", line {i}, in f' for i in range(150))],
    "diff": [
        "diff --git a/x b/x",
        "--- a/x",
        "+++ b/x",
        "@@ -1,90 +1,90 @@",
        *(f"+ line {i}" for i in range(90)),
        "end",
    ],
    "ndjson": [f'{{"id": {i}, "note": "nothing to see in this one"}}' for i in range(150)],
}


@pytest.mark.parametrize("form", FRAMED)
def test_m10_errors_and_the_status_come_before_anything_else_in_every_form(form: str) -> None:
    lines = [*FRAMED[form], *FAILURES] if form in ("diff", "ndjson") else [*FRAMED[form]]
    for i, line in enumerate(() if form in ("diff", "ndjson") else FAILURES):
        lines.insert(12 + 15 * i, line)
    short = digested("\n".join([*lines, "exit code 3"]), "command", 260, NONE, letters)
    shown = short.splitlines()
    assert {*FAILURES, "exit code 3"} <= {*shown}
    assert letters(short) < 340
    tiny = digested("\n".join([*lines, "exit code 3"]), "command", 30, NONE, letters).splitlines()
    assert {[line for line in lines if ERROR.search(line)][-1], "exit code 3"} <= {*tiny}


HOSTILE = {
    "one line": "x" * 2_000_000,
    "line ends": "\n" * 20_000,
    "long words": ("a" * 1999 + "\n") * 10,
    "slashes": ("/" * 250 + "\n") * 200,
    "open tags": "<html>" + "<a " * 300_000,
    "open comments": "<html>" + "<!--" * 100_000,
    "deep": "[" * 50_000 + "]" * 50_000,
    "deep objects": '{"a":' * 20_000,
    "numbers": "[" + "1," * 10_000 + "1]",
    "escapes": '["' + "\\\\n" * 30_000 + '"]',
    "huge JSON": "[" + "1," * 1_000_000 + "1]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_x9_hostile_texts_are_made_short(name: str) -> None:
    short = digested(HOSTILE[name], "web", 60, NONE, letters)
    assert letters(short) < 120


def test_m10_what_no_form_knows_is_an_excerpt_by_its_kind() -> None:
    names = (f"{i:07b}".replace("0", "a").replace("1", "b") for i in range(120))
    text = "\n".join(f"    {name} is a thing of its own" for name in names)
    lines = text.splitlines()
    for kind, head in (("file", HEAD["file"]), ("web", HEAD["web"])):
        shown = digested(text, kind, 200, NONE, letters).splitlines()
        gap = next(i for i, line in enumerate(shown) if line.startswith("[..."))
        assert [*shown[:gap], *shown[gap + 1 :]] == [*lines[:gap], *lines[gap + 1 - len(shown) :]]
        assert gap / (len(shown) - 1) == pytest.approx(head, abs=0.1)


DIFF = """diff --git a/src/a.py b/src/a.py
index 50f85e0621..6fed58de33 100644
--- a/src/a.py
+++ b/src/a.py
@@ -70,5 +70,6 @@ class Operations:
     def first(self):
         raise ValueError("no error of this run")
-        return self.old()
+        total = self.new()
+        return total
     def other(self):
@@ -170,5 +171,5 @@ class Operations:
     def second(self):
         pass  # and a long line of context that says nothing to anybody who reads this
-        return 1
+        return 2
     def third(self):
diff --git a/gone.py b/gone.py
deleted file mode 100644
--- a/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-print()
"""


def test_m10_a_diff_keeps_files_hunks_and_what_changed() -> None:
    assert digested(DIFF, "command", 110, NONE, letters) == (
        "[...84 chars omitted...]\n"
        "+++ b/src/a.py\n"
        "@@ -70,5 +70,6 @@ class Operations:\n"
        "[...72 chars omitted...]\n"
        "-        return self.old()\n"
        "+        total = self.new()\n"
        "+        return total\n"
        "     def other(self):\n"
        "@@ -170,5 +171,5 @@ class Operations:\n"
        "[...111 chars omitted...]\n"
        "-        return 1\n"
        "[...71 chars omitted...]\n"
        "deleted file mode 100644\n"
        "--- a/gone.py\n"
        "+++ /dev/null\n"
        "@@ -1 +0,0 @@\n"
        "-print()\n"
    )


LIBRARY = [f"{{}}/lib/python3.11/site-packages/lib/deep_{i}.py{{}}" for i in range(30)]
TRACES = {
    "python": (
        ["Traceback (most recent call last):", '  File "app/main.py", line 9, in run', "    go(1)"]
        + [f'  File "/env{at.format("", "")}", line {i}, in f' for i, at in enumerate(LIBRARY)]
        + ["KeyError: 'name'"],
        ['  File "app/main.py", line 9, in run', "    go(1)", "KeyError: 'name'"],
    ),
    "pytest": (
        ["=== test session starts ===", "=========== FAILURES ===========", "____ test_adds ____"]
        + [
            "    def test_adds():",
            ">       assert add(1, 1) == 3",
            "E       assert 2 == 3",
            "tests/test_a.py:7: AssertionError",
        ]
        + [f"/env{at.format('', '')}:{i}: in call" for i, at in enumerate(LIBRARY)]
        + ["FAILED tests/test_a.py::test_adds - assert 2 == 3", "=== 1 failed, 8 passed in 0.12s ==="],
        [">       assert add(1, 1) == 3", "E       assert 2 == 3", "=== 1 failed, 8 passed in 0.12s ==="],
    ),
    "javascript": (
        ["TypeError: x is undefined", "    at getX (/home/u/app/src/x.js:10:5)"]
        + [f"    at next (/home/u/app/node_modules/lib/index.js:{i}:3)" for i in range(40)]
        + ["    at main (/home/u/app/src/index.js:3:1)"],
        [
            "TypeError: x is undefined",
            "    at getX (/home/u/app/src/x.js:10:5)",
            "    at main (/home/u/app/src/index.js:3:1)",
        ],
    ),
    "go": (
        ["--- FAIL: TestAdd (0.00s)", "    add_test.go:12: got 3, want 4", "goroutine 7 [running]:"]
        + [f"\t/usr/local/go/src/testing/testing.go:{i} +0x1b" for i in range(40)]
        + ["\t/home/u/add/add.go:9 +0x2a", "exit status 2", "FAIL\texample.com/add\t0.01s"],
        ["--- FAIL: TestAdd (0.00s)", "\t/home/u/add/add.go:9 +0x2a", "exit status 2", "FAIL\texample.com/add\t0.01s"],
    ),
    "rust": (
        ["thread 'main' panicked at src/main.rs:5:10:", "called `Option::unwrap()` on a `None` value"]
        + [f"             at /rustc/abc/library/core/src/panicking.rs:{i}:14" for i in range(40)]
        + ["  21: app::main", "             at ./src/main.rs:5:10"],
        ["thread 'main' panicked at src/main.rs:5:10:", "             at ./src/main.rs:5:10"],
    ),
    "java": (
        ['Exception in thread "main" java.lang.IllegalStateException: no session']
        + [f"\tat org.apache.catalina.core.Base.call(Base.java:{i})" for i in range(40)]
        + ["\tat com.acme.App.run(App.java:42)", "Caused by: java.io.IOException: disk", "\t... 12 more"],
        ["\tat com.acme.App.run(App.java:42)", "Caused by: java.io.IOException: disk"],
    ),
}


@pytest.mark.parametrize("language", TRACES)
def test_m10_a_failure_keeps_the_error_the_users_own_frames_and_the_summary(language: str) -> None:
    lines, wanted = TRACES[language]
    shown = digested("\n".join(lines), "command", 95, NONE, letters).splitlines()
    assert {*wanted} <= {*shown}
    assert letters("\n".join(shown)) < 120


@pytest.mark.parametrize("line", ["{} INFO served /a/{}\n", "src/a{}.py:{}: found = 1\n", "./src/d{}/f{}.py\n"])
def test_m10_errors_in_the_middle_of_a_long_text_stay(line: str) -> None:
    lines = [line.format(i, i) for i in range(4_000)]
    lines[1_900] = "ValueError: in the middle\n"
    text = "".join(lines)
    assert 70_000 < len(text) < 128_000
    shown = digested(text, "command", 300, NONE, letters)
    assert lines[1_900] in shown
    assert len(shown) < 2_000


def test_law_6_a_text_that_a_form_stumbles_over_is_shortened_all_the_same() -> None:
    text = '{"a": "\ud800", "b": "' + "x" * 400 + '"}\n' + "a line of no interest at all, and another one\n" * 90
    assert 0 < len(digested(text, "data", 60, NONE, letters)) < 400
