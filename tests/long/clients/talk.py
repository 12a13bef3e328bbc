"""A session of edits without tools: long prose of the model, and an edit as aider takes it from its text."""

import re
from collections.abc import Iterable
from pathlib import Path

from proxy.lab.provider import Received, Say

FILE = "notes.txt"
WORDS = tuple(f"kestrel{number * 7919 + 13}" for number in range(10))
EDIT = """{prose}

{file}
```
{before}
{word}
```
"""


class Editor:
    """What the model does: it adds the word that it is asked for below the last one."""

    tasks = tuple(f"Add the word {word} to {FILE}." for word in WORDS)

    def __call__(self, received: Received) -> Say | None:
        if not isinstance(received.json, dict) or not isinstance(received.json.get("messages"), list):
            return None
        asked = re.findall(rb"Add the word (kestrel\d+) to notes.txt", received.body)
        if not asked:
            return Say("A title")
        word = asked[-1].decode()
        number = WORDS.index(word)
        before = WORDS[number - 1] if number else "words"
        prose = " ".join(f"Step {n} of {word}: the line before it was {before}, which stays." for n in range(60))
        return Say(EDIT.format(prose=prose, file=FILE, before=before, word=word))


def unedited(end: tuple[int | None, str, str], work: Path) -> Iterable[str]:
    """What of the edits did not come about."""
    code, stdout, stderr = end
    text = (work / FILE).read_text() if (work / FILE).exists() else ""
    if code != 0 or text.split() != ["words", *WORDS]:
        print(stdout, stderr, sep="\n")
        yield f"it ended with {code}; {FILE}: {text!r}"
