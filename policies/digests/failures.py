"""Tracebacks and failed tests: the errors, their places in the user's own files, and the summary of the run.

Frames of libraries come last: the reader of the digest cannot change them.
"""

import re
from collections.abc import Sequence

from policies.digests.rows import Source, render_lines

_LOOK = re.compile(
    r"^[ \t]{0,40}(?:Traceback \(most recent call last\)|--- FAIL: |goroutine \d{1,9} \[|"
    r"at [\w$.<>/ ]{1,200}\([^()\n]{1,300}:\d{1,9}(?::\d{1,9})?\)$|at (?:file:|/|node:)[^\n]{1,300}:\d{1,9}:\d{1,9}$)|"
    r"^={3,80} (?:FAILURES|ERRORS) ={3,80}$|^thread '[^'\n]{0,200}' (?:\(\d{1,20}\) )?panicked at |"
    r"^E {3}[ \t]{0,20}\S|^={20,80}\n(?:FAIL|ERROR): ",
    re.M,
)
_TELLING = ("Traceback", "--- FAIL", "goroutine", "at ", "===", "thread '", "E   ")
_FRAME = re.compile(
    r"^[ \t]{0,40}(?:File \"[^\"\n]{1,400}\", line \d|at [^\n]{1,400}:\d{1,9}(?::\d{1,9})?\)?$|"
    r"[\w./~@+-]{1,300}:\d{1,9}(?::\d{1,9})?(?:$|: ?\S| \+0x)|\d{1,4}: +(?:0x[0-9a-f]{1,16} - )?[\w<])"
)
_FOREIGN = re.compile(
    r"site-packages|dist-packages|/lib/python\d|<frozen |node_modules|\(?node:|/rustc/|/\.cargo/|/go/pkg/mod/|"
    r"/usr/(?:local/)?(?:go|lib)/|\bat (?:java|javax|jdk|sun|org\.junit|org\.gradle|org\.apache)\.|"
    r"\b(?:std|core)::|unittest/|/_pytest/"
)
_WORDS: Sequence[tuple[int, re.Pattern[str]]] = (
    (6, re.compile(r"={3,80} [^\n]{0,200}(?:passed|failed|error)|FAILED \(|Ran \d|Tests?:? +\d|test result:|FAIL\t")),
    (4, re.compile(r"(?:E {3}[ \t]{0,8})?(?:[\w.]{0,80}(?:Error|Exception)\b|assert )|Caused by: |>  ")),
    (3, re.compile(r"(?:FAIL|ERROR|FAILED|PASSED|XPASS)\b|_{3,80} |--- FAIL|\w{1,80}Warning\b")),
    (1, re.compile(r"E {3}")),
)
"""What lines are worth: the summary of the run, errors, names of tests, other lines of a failure."""


def failure_digest(source: Source) -> str:
    """The errors, their places and the summary first; "" where the text reports no failure."""
    lines = source.searchable
    pairs = zip(lines, [*lines[1:], ""], strict=True)
    if not any(line.lstrip(" \t").startswith(_TELLING) and _LOOK.match(line + below) for line, below in pairs):
        return ""
    worths: list[int] = []
    below = 0  # the line of code below a frame belongs to it
    for line in lines:
        if (":" in line or 'File "' in line) and _FRAME.match(line):
            foreign = bool(_FOREIGN.search(line))
            worths.append(-1 if foreign else 2)
            below = -1 if foreign else 1
        elif below and line.startswith((" ", "\t")):
            worths.append(below)
            below = 0
        else:
            worths.append(0 if line[0].isspace() else next((worth for worth, words in _WORDS if words.match(line)), 0))
            below = 0
    return render_lines(source, worths, source.errors)
