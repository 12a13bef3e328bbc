"""Digests of what comes in many like lines: hits, listings, logs."""

from policies.digests import digested
from tests.kit.talk import letters

NONE = frozenset[str]()
HITS = "".join(f"src/{'abc'[i % 3]}.py:{i}:    total_{i} = parse(row)  # line {i}\n" for i in range(60))


def test_m10_hits_stand_under_their_file() -> None:
    assert digested(f"exit code 0\n{HITS}", "search", 150, frozenset({"total_31"}), letters) == (
        "exit code 0\n"
        "src/a.py (20 hits)\n0:    total_0 = parse(row)  # line 0\n3:    total_3 = parse(row)  # line 3\n"
        "6:    total_6 = parse(row)  # line 6\n9:    total_9 = parse(row)  # line 9\n"
        "src/b.py (20 hits)\n1:    total_1 = parse(row)  # line 1\n4:    total_4 = parse(row)  # line 4\n"
        "7:    total_7 = parse(row)  # line 7\n31:    total_31 = parse(row)  # line 31\n"
        "src/c.py (20 hits)\n2:    total_2 = parse(row)  # line 2\n5:    total_5 = parse(row)  # line 5\n"
        "8:    total_8 = parse(row)  # line 8\n"
    )
    deep = HITS.replace("src/", "src/package/of/many/")
    whole = digested(deep, "search", 850, NONE, letters)
    assert whole.splitlines()[::21] == [f"src/package/of/many/{name}.py" for name in "abc"]
    assert all(line.split(":", 1)[1] in whole for line in HITS.splitlines())


def test_m10_files_that_are_left_out_are_counted() -> None:
    hits = "".join(f"src/module_{i}.py:{line}: x\n" for i in range(40) for line in (3, 9))
    shown = digested(hits, "search", 60, NONE, letters)
    files = [line for line in shown.splitlines() if line.endswith("hits)")]
    assert files[-1] == f"({41 - len(files)} more files, {82 - 2 * len(files)} hits)"


def test_m10_hits_under_a_heading_or_with_context_are_hits() -> None:
    headed = "src/a.py\n" + "".join(f"{i}:  call(row_{i})\n{i + 1}-  pass\n" for i in range(1, 90, 3))
    shown = digested(headed, "command", 80, frozenset({"row_61"}), letters).splitlines()
    assert shown[0] == "src/a.py (60 hits)"
    assert "61:  call(row_61)" in shown
    context = "".join(f"lib/b.c-{i}-  prepare();\nlib/b.c:{i + 1}:  call();\n--\n" for i in range(1, 90, 3))
    shown = digested(context, "command", 80, NONE, letters).splitlines()
    assert shown[:3] == ["lib/b.c (60 hits)", "1-  prepare();", "2:  call();"]


def test_m10_a_listing_keeps_key_files_and_counts_the_others() -> None:
    entries = ["README.md", "Makefile", *(f"part_{i}.c" for i in range(30)), *(f"part_{i}.h" for i in range(20))]
    lines = [f"-rw-r--r-- 1 root root {i * 77} Apr 30 09:56 {name}" for i, name in enumerate(entries)]
    text = "\n".join(["total 296", "drwxr-xr-x 2 root root 4096 Apr 30 09:56 .", *lines, "d" + lines[0][1:-9] + "src"])
    assert digested(text, "listing", 30, frozenset({"part_7.h"}), letters) == (
        "README.md  Makefile  part_0.c  part_7.h  (+ 29 .c, 19 .h, 1 directories)\n"
    )


TREE = """.
├── README.md
├── src
│   ├── one.py
│   └── deep
│       ├── two.py
│       └── three.py
└── tests
    ├── test_one.py
    └── test_two.py

4 directories, 6 files
"""
RECURSIVE = """.:
README.md
src
tests

./src:
deep
one.py

./src/deep:
three.py
two.py

./tests:
test_one.py
test_two.py
"""


def test_m10_trees_are_listed_by_directory() -> None:
    assert digested(TREE, "command", 38, NONE, letters) == (
        ".\nREADME.md  src/  tests/\n"
        "src: one.py  (+ 1 directories)\n"
        "(2 more directories, 4 names)\n"
        "4 directories, 6 files\n"
    )
    assert digested(RECURSIVE, "listing", 24, NONE, letters) == (
        ".: README.md  src/  tests/\n(3 more directories, 6 names)\n"
    )


def test_m10_paths_are_listed_by_directory_and_what_went_wrong_is_kept() -> None:
    paths = "".join(f"src/part_{i % 4}/module_{i}.py\n" for i in range(80))
    text = f"{paths}find: '/root': Permission denied, a fatal error\n"
    shown = digested(text, "listing", 90, frozenset({"src/part_3/module_39.py"}), letters).splitlines()
    assert shown[-1] == "find: '/root': Permission denied, a fatal error"
    assert shown[0].startswith("src/part_0: module_0.py  module_4.py")
    assert "module_39.py" in shown[3]
    assert shown[3].endswith(" .py)")


LOG = [
    f"2026-05-01 10:00:{i % 60:02} "
    + (f"ERROR could not reach db-{i}" if i % 50 == 49 else f"INFO worker-{i % 4} handled '/a/{i}' in {i * 7} ms")
    for i in range(200)
]


def test_m10_a_log_says_each_form_of_line_once_and_every_error() -> None:
    text = "\n".join(["starting", *LOG, "WARNING shutting down slowly", "bye"])
    assert digested(text, "command", 200, NONE, letters) == "\n".join(
        ["starting", f"{LOG[0]} [x 196]", LOG[49], LOG[99], LOG[149], LOG[199], "WARNING shutting down slowly", "bye"]
    )


def test_m10_a_line_that_was_mentioned_stands_for_itself() -> None:
    lines = [f"step {i} ran job_{i * 31} with {'x' * 40}" for i in range(100)]
    shown = digested("\n".join(lines), "command", 60, frozenset({"job_1240"}), letters)
    assert shown.splitlines() == [f"{lines[0]} [x 98]", lines[40], lines[-1]]


def test_m10_lines_of_code_are_no_log() -> None:
    code = "\n".join(f"    self.call_{i}(value)" for i in range(100))
    assert "[x " not in digested(code, "file", 100, NONE, letters)


def test_m10_lines_that_are_too_long_to_be_read_are_not_lost_without_a_word() -> None:
    long = "x" * 5000 + "\n"
    for text in (HITS + long + HITS, "".join(f"src/module_{i}.py\n" for i in range(200)) + long):
        shown = digested(text, "listing", 200, NONE, letters)
        assert "chars omitted...]" in shown
        assert letters(shown) < 260


def test_m10_an_error_that_comes_again_and_again_is_said_once() -> None:
    lines = [*("ERROR: lost connection" for _ in range(90)), *LOG[:40], "ERROR: another one", "bye"]
    shown = digested("\n".join(lines), "command", 60, NONE, letters).splitlines()
    assert shown == ["ERROR: lost connection [x 90]", f"{LOG[0]} [x 40]", "ERROR: another one", "bye"]
