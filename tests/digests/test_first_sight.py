"""Excerpts at first sight: what tells nothing goes, and where much matters, much stays, or all of it."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.digests.first_sight import seen_first
from policies.model.tokens import Counter
from policies.presets import PRESETS
from policies.rules.offload import Offload
from policies.text.excerpt import ERROR
from policies.tools import ToolKind
from tests import examples
from tests.digests.test_digests import FAILURES, FRAMED, HOSTILE, LINES
from tests.kit.talk import letters

NONE = frozenset[str]()
KINDS: tuple[ToolKind, ...] = ("search", "listing", "command", "data")


def seen(lines: list[str], kind: ToolKind = "command", budget: int = 300) -> list[str]:
    return seen_first("\n".join(lines), kind, budget, NONE, letters).splitlines()


# --- commands: passed tests and progress go; verdicts, counts and all that is no progress stay ---

NOISE = {
    "pytest": "tests/test_part.py::test_part_{} PASSED   [ 12%]",
    "pytest by file": "tests/test_part_{}.py ....s....   [ 12%]",
    "unittest": "test_part_{} (tests.Parts.test_part_{}) ... ok",
    "go": "=== RUN   TestPart{}",
    "go packages": "ok  \texample.com/part_{}\t0.012s",
    "tap": "ok {} - handles part_{}",
    "mocha": "  ✓ handles part_{} (3 ms)",
    "cargo": "   Compiling part_{} v1.0.{}",
    "make": "[ 12%] Building CXX object part_{}.o",
    "ninja": "[{}/120] CC part_{}.o",
    "pip": "Downloading part_{}-1.0-py3-none-any.whl (3 kB)",
    "git": "remote: Counting objects: {} of part_{}",
}
TELLING = [
    "=== 120 passed in 0.10s ===",
    "test result: ok. 120 passed; 0 failed; 0 ignored",
    "OK (skipped=3)",
    "PASS",
    "added 120 packages in 3s",
    "remote: https://example.com/a/pull/new/branch",
    "hint: Updates were rejected because the tip is behind",
    "[7/120] warning: part_7 is deprecated",
    "FAILED tests/test_other.py::test_it - assert 1 == 2",
    "the check has passed, and part_9 says so",
]


@pytest.mark.parametrize("name", NOISE)
def test_m10_passed_tests_and_progress_go_and_nothing_else(name: str) -> None:
    noise = [NOISE[name].format(i, i) for i in range(120)]
    shown = seen([*noise[:60], *TELLING, *noise[60:]])
    assert {*TELLING} <= {*shown}
    assert {*noise}.isdisjoint(shown)


def test_m10_a_few_steps_of_progress_are_lines_like_others() -> None:
    lines = [f"{'abcdefgh'[i % 8] * (i + 3)} is a thing of its own" for i in range(90)]
    lines[0] = "Compiling all of it"
    assert seen(lines)[0] == lines[0]


FAILING = {
    "cp": "Copying part_{}.img||Copying part_x.img: No space left on device|"
    "cp: cannot create regular file 'x': Read-only|"
    "Copying x: Input/output error|rsync: connection unexpectedly closed (0 bytes received so far)",
    "psql": "Creating table part_{}||Creating table orders: permission denied|"
    "Creating index on parts: relation is missing|"
    "psql: could not connect to server",
    "pip": "Collecting part_{} (from -r requirements.txt (line {}))||Downloading x: connection refused|"
    "Collecting nosuch: Could not find a version that satisfies it|ERROR: ResolutionImpossible: see the docs|"
    "Downloading part_x: Read timed out.|Installing x: Killed",
    "curl": "Fetching https://example.com/{}||Fetching https://example.com/y: 404|curl: (6) no answer of the host|"
    "Fetching y: HTTP 503|Fetching y: timed out after 30 s|Downloading x returned a non-zero code: 22",
    "npm": "npm http fetch GET 200 https://example.com/part_{}||"
    "npm http fetch GET 404 https://example.com/x: Not Found|"
    "npm ERR! code ERESOLVE|npm notice EACCES: permission denied, mkdir '/x'",
    "cargo": "   Compiling part_{} v1.0.{}||error[E0308]: mismatched types|"
    "   Compiling x v1.0: linker `cc` not found|"
    "thread 'main' panicked at src/main.rs:3:5:|signal: 9, SIGKILL: kill",
    "git": "remote: Counting objects: {} of part_{}||CONFLICT (content): Merge conflict in a.py|"
    " ! [rejected]        main -> main (non-fast-forward)|fatal: refusing to merge unrelated histories|"
    "remote: Counting objects: corrupt pack|Receiving objects: early EOF, connection reset by peer",
    "docker": "[{}/900] RUN step_{}||[7/900] RUN make: exit code: 2|Pulling x: pull access denied|"
    "Pulling x: toomanyrequests: slow down|#12 ERROR: process did not complete: exit status 1",
    "make": "[ 12%] Building CXX object part_{}.o||make: *** [Makefile:3: all] Error 2|"
    "[ 50%] Linking CXX x: undefined reference to `f'|make: *** No rule to make target 'x'.  Stop.|"
    "[ 13%] Building CXX object x.o: Segmentation fault",
    "apt": "Get:{} http://example.com/part_{}||Err:3 http://example.com noble/main|E: Unable to locate package x|"
    "Unpacking x: dpkg-deb: unexpected end of file|Setting up x: unmet dependencies|"
    "Get:4 http://x: Hash Sum mismatch",
    "rsync": "src/dir/part_{}.txt||[ERROR] COMPILATION ERROR :|The following packages have unmet dependencies:",
    "ssh": "Copying part_{} to host||Permission denied (publickey).|Copying x: Host key verification failed.|"
    "ssh: connect to host x port 22: No route to host|Copying x: Broken pipe",
    "terraform": "Creating part_{}.x||Creating bucket: AccessDenied: Access Denied|Creating x: quota exceeded|"
    "Creating x: a resource with the id is already in use",
    "kubectl": "Creating pod part_{}||Creating pod x: ImagePullBackOff|Pulling image x: ErrImagePull|"
    "Creating x: OOMKilled|"
    "Creating pod x: 0/3 nodes are available: 3 Insufficient memory|Creating pod x: CrashLoopBackOff",
    "systemctl": "Installing unit_{}.service||Unit x.service could not be found.|Installing x: Unit is invalid|"
    "Installing x.service: Main process exited with status 203/EXEC",
    "go": "ok  \texample.com/part_{}\t0.012s||./main.go:5:2: undefined: foo|FAIL\texample.com/part_x [build failed]|"
    "main.go:3:8: no required module provides package x|panic: runtime: index out of range|"
    "fatal: all goroutines are asleep - deadlock!",
}
BROKEN = [
    (steps, line)
    for steps, *lines in (each.replace("||", "|").split("|") for each in FAILING.values())
    for line in lines
]


@pytest.mark.parametrize(("steps", "line"), BROKEN)
@pytest.mark.parametrize("at", [0, 3, 200, 388, 400])
def test_m10_what_failed_stays_among_progress(steps: str, line: str, at: int) -> None:
    lines = [steps.replace("{}", str(i)) for i in range(400)]
    text = "\n".join([*lines[:at], line, *lines[at:]])
    spoken = frozenset({"requirements.txt", "example.com", "/x", "part_7"})
    for preset in ("adaptive", "steady"):
        offload = next(each for each in PRESETS[preset].policies if isinstance(each, Offload))
        budget = max(offload.first_sight_least, int(offload.first_sight_share * letters(text)))
        shown = seen_first(text, "command", budget - 10, spoken, letters)
        assert line in shown.splitlines()
        assert len(shown) < len(text) / 2


def test_m10_a_step_unlike_its_neighbours_stays_while_there_is_room() -> None:
    lines = [f"Copying part_{i}.img" for i in range(400)]
    lines[100], lines[300] = "Copying part_100.img: how odd", "Cloning part_300"
    assert {lines[100], lines[300]} <= {*seen(lines)}
    assert lines[99] not in seen(lines)


@pytest.mark.parametrize(
    "form", ["make: *** [part_{}] Error 1", "Copying part_{}: denied", "src/part_{}.c:3:5: error: no", "{}"]
)
def test_m10_of_many_failures_the_first_and_the_last_stay_and_the_count(form: str) -> None:
    words = ["cannot", "denied", "fatal:", "missing"]
    lines = [form.format(i if form != "{}" else f"{words[i % 4]} {'abcdefgh'[i % 8] * (i % 97)}") for i in range(600)]
    shown = seen(
        [*(f"Copying part_{i}" for i in range(20)), *lines, *(f"✓ reports missing_{i}: denied" for i in range(20))]
    )
    joined = "\n".join(shown)
    assert lines[0].rpartition("c:")[2] in joined
    assert lines[-1].rpartition("c:")[2] in joined
    assert shown[-1] == "(600 lines tell of failures)"


def test_m10_a_name_on_most_lines_is_no_reason_to_show_them() -> None:
    lines = [f"Collecting part_{i} (from -r requirements.txt (line {i}))" for i in range(400)]
    text, spoken = "\n".join([*lines, "Successfully installed all"]), frozenset({"requirements.txt", "part_77"})
    shown = seen_first(text, "command", 300, spoken, letters).splitlines()
    assert [line for line in shown if "part_" in line] == [lines[77]]
    assert shown[-1] == "Successfully installed all"


COUNTER = Counter()


@pytest.mark.parametrize("letter", ["漢字の行", "строка о деле ", "🙂👨‍👩‍👧🔥é"])
@pytest.mark.parametrize("lines", [True, False])
def test_m10_texts_in_other_letters_are_cut_as_much(letter: str, lines: bool) -> None:
    end = "\n" if lines else ""
    text = "".join(f"{letter * (1 + i % 7)}{chr(ord('a') + i % 26) * (i % 9)}{end}" for i in range(400))
    shown = seen_first(text, "command", COUNTER(text) // 4, NONE, COUNTER)
    assert 0.15 < COUNTER(shown) / COUNTER(text) < 0.3
    assert not re.search("[\u200d](?:\\[|\n)|\\](?:\n?)[\u200d\u0301]", shown)


def failing(parts: int) -> list[str]:
    """What pytest says of one failure among many tests, with frames of a library and what was printed before."""
    return [
        *(f"tests/test_part_{i}.py::test_it PASSED" for i in range(parts)),
        "=================== FAILURES ===================",
        "___________________ test_adds __________________",
        "    def test_adds():",
        "        basket = filled(3)",
        ">       assert basket.total() == 4",
        "E       assert 3 == 4",
        "tests/test_adds.py:7: AssertionError",
        *(f"/env/lib/python3.11/site-packages/lib/deep_{i}.py:{i}: in call" for i in range(parts)),
        "------------- Captured stdout call -------------",
        *(f"{'very ' * (i % 17)}much was printed at {'abcdefghijklm'[i % 13] * 3}" for i in range(parts)),
        "=========== short test summary info ============",
        "FAILED tests/test_adds.py::test_adds - assert 3 == 4",
        f"=== 1 failed, {parts} passed in 0.12s ===",
    ]


def test_m10_a_failure_stays_with_what_stands_around_it() -> None:
    lines = failing(60)
    shown = seen(lines)
    assert {*lines[60:67], *lines[-2:]} <= {*shown}
    assert not [line for line in shown if "PASSED" in line or "site-packages" in line]
    assert letters("\n".join(shown)) <= 2 * 300


def test_m10_where_much_matters_twice_as_much_stays() -> None:
    body = [f"E       + where {i} = part_{i}({'abcdefgh'[i % 8]})" for i in range(40)]
    first, *rest = failing(30)
    at = rest.index("E       assert 3 == 4")
    shown = seen([first, *rest[:at], *body, *rest[at:]])
    assert {*body} <= {*shown}
    assert 300 < letters("\n".join(shown)) <= 600


# --- which outputs stay, and how much of them ---


@pytest.mark.parametrize("kind", KINDS)
def test_m10_what_is_hardly_shorter_stays_whole(kind: ToolKind) -> None:
    text = "".join(f"{'abcdefgh'[i % 8] * (i % 31)} is a thing of its own\n" for i in range(90))
    assert seen_first(text, kind, int(0.9 * letters(text)), NONE, letters) == text


def test_m10_of_what_was_asked_for_line_by_line_more_stays() -> None:
    text = "".join(f"src/part_{i}/of_{'abcdefgh'[i % 8]}.py:{i}:  total = part_{i}({i})\n" for i in range(400))
    paths = "".join(f"src/part_{i}/of_{'abcdefgh'[i % 8]}_{i}.py\n" for i in range(400))
    hits, names = (seen_first(text, "search", 300, NONE, letters), seen_first(paths, "listing", 300, NONE, letters))
    assert 2.5 < letters(hits) / letters(seen_first(text, "command", 300, NONE, letters)) < 3.5
    assert 1.5 < letters(names) / letters(seen_first(paths, "command", 300, NONE, letters)) < 2.5


def test_m10_names_that_are_spoken_of_stay() -> None:
    lines = [f"tests/test_part_{i}.py::test_it PASSED" for i in range(200)]
    text = "\n".join([*lines, "=== 200 passed in 0.10s ==="])
    shown = seen_first(text, "command", 60, frozenset({"tests/test_part_77.py"}), letters).splitlines()
    assert [line for line in shown if "PASSED" in line] == [lines[77]]


# --- laws ---


@pytest.mark.parametrize("form", [*FRAMED, *NOISE])
def test_m10_errors_and_the_status_stay_in_every_form(form: str) -> None:
    lines = FRAMED[form] if form in FRAMED else [NOISE[form].format(i, i) for i in range(150)]
    shown = seen([*lines, *FAILURES, "exit code 3"])
    assert {*FAILURES, "exit code 3"} <= {*shown}
    tiny = seen([*lines, *FAILURES, "exit code 3"], budget=30)
    assert {FAILURES[-1], "exit code 3"} <= {*tiny}


COUNT = re.compile(r"\n\(\d+ lines tell of failures\)$")
GAP = re.compile(r"\[\.\.\.(\d+) chars omitted\.\.\.\]\n?")
OWN = st.sampled_from([*NOISE.values(), *TELLING, *failing(2), "some line that says of {} what it is", ""])


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(OWN, min_size=20, max_size=120), st.integers(30, 300))
def test_m10_each_gap_is_marked_with_what_it_hides(shapes: list[str], budget: int) -> None:
    """What is shown of a command's output stands in it, in this order, and the marks count all the rest."""
    text = "\n".join(shape.replace("{}", str(i)) for i, shape in enumerate(shapes))
    shown = seen_first(text, "command", budget, NONE, letters)
    assume("[x " not in shown and " hits)" not in shown)  # logs and hits: lines of one form stand together
    shown, at = COUNT.sub("", shown), 0
    for n, piece in enumerate(GAP.split(shown)):  # the numbers stand between the texts
        if n % 2:
            at += int(piece)
        else:
            assert text.startswith(piece, at)
            at += len(piece)
    assert at == len(text)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(LINES, max_size=150), st.sampled_from(KINDS), st.integers(10, 200), st.booleans())
def test_m10_an_excerpt_is_worth_it_and_always_the_same(
    lines: list[str], kind: ToolKind, budget: int, mention: bool
) -> None:
    text, said = "\n".join(lines), frozenset({"a.py", "src/a.py", "step"}) if mention else NONE
    short = seen_first(text, kind, budget, said, letters)
    assert short == text or len(short) <= 0.8 * len(text)
    assert short == seen_first(text, kind, budget, said, letters)
    wrong = [line for line in lines if ERROR.search(line)]
    assert not wrong or ERROR.search(short)
    short.encode()


BINARY = "".join(chr(i * 7919 % 256) for i in range(1_000_000))
FORGED = "[narrows: rest: ref 482913]\n[...12 chars omitted...]\n(3 more files, 9 hits)\nsame [x 12]\n" * 4_000
MORE_HOSTILE = HOSTILE | {
    "binary": BINARY,
    "many lines": "".join(f"line {i} of it\n" for i in range(100_000)),
    "nearly passed": ("a" * 199 + " ." + "." * 150 + "!\n") * 2_000,
    "nearly ok": ("test " + "b " * 90 + "...\n") * 2_000,
    "headings": ("=" * 80 + " " + "= " * 200 + "\n") * 1_000,
    "forged": FORGED,
    "carriage returns": "\r".join(f"{i}% done" for i in range(100_000)),
}


@pytest.mark.parametrize("name", MORE_HOSTILE)
@pytest.mark.parametrize("kind", KINDS)
def test_x9_hostile_outputs_are_excerpted(name: str, kind: ToolKind) -> None:
    text = MORE_HOSTILE[name]
    assert letters(seen_first(text, kind, 300, NONE, letters)) <= 3 * 300 + 100
