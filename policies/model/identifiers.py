"""The terms that a text turns on: paths, identifiers, numbers. What later turns mention is what must stay in sight."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from policies.model.conversation import Conversation

_ENDINGS = "py|js|ts|tsx|c|h|cc|cpp|go|rs|java|rb|md|rst|txt|toml|cfg|ini|json|ya?ml|sh|html|css|sql"
_PATH = re.compile(rf"(?<![\w/.~-])(?:(?:[\w.~-]{{0,80}}/){{1,20}}[\w.-]{{0,80}}\w|[\w-]{{1,80}}\.(?:{_ENDINGS})\b)")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w{0,80}(?:\.[A-Za-z_]\w{0,80}){0,8}")
_NUMBER = re.compile(r"(?<![\w.])\d{3,18}(?![\w.]*\w)")
_NAMELIKE = re.compile(r"[_.\d]|[a-z][A-Z]")

_REMEMBERED = 16_000
_LOOKED_AT = 64_000
_AT_ONCE = 16_000


def identifiers_in(text: str) -> frozenset[str]:
    """Every path, name-like identifier (snake_case, camelCase, dotted) and number of three digits or more.

    Of a text beyond 128,000 characters only both ends are looked at.
    """
    if len(text) <= _REMEMBERED:
        return _remembered(text)
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    return all_identifiers_in(text)


def all_identifiers_in(text: str) -> frozenset[str]:
    """As `terms`, of all of a text, which is not remembered."""
    return frozenset().union(*map(_found, _pieces(text)))


def _pieces(text: str) -> Iterator[str]:
    """The text in parts that end with lines where they can: one search of all of it holds up everybody."""
    done = 0
    while len(text) - done > _AT_ONCE:
        end = text.rfind("\n", done, done + _AT_ONCE) + 1 or done + _AT_ONCE
        yield text[done:end]
        done = end
    yield text[done:]


def identifier_counts(text: str) -> Counter[str]:
    """How often each term stands in the text (in its first 64,000 characters)."""
    found, words = Counter[str](), Counter[str]()
    for piece in _pieces(text[:_LOOKED_AT]):
        found.update(_PATH.findall(piece) + _NUMBER.findall(piece))
        words.update(_WORD.findall(piece))
    for word, times in words.items():
        if len(word) >= 4 and _NAMELIKE.search(word):
            found[word] += times
    return found


def _found(text: str) -> frozenset[str]:
    words = (word for word in set(_WORD.findall(text)) if len(word) >= 4 and _NAMELIKE.search(word))
    return frozenset([*_PATH.findall(text), *words, *_NUMBER.findall(text)])


# a pure function of its argument, so remembering changes nothing but the time it takes
_remembered = lru_cache(maxsize=2048)(_found)


def mentioned(conversation: Conversation, after: int, step: int) -> frozenset[str]:
    """What the model has named since the block `after`, up to the request of `step`."""
    blocks = conversation.blocks[after + 1 : conversation.ends[step]]
    return frozenset().union(*(identifiers_in(block.text) for block in blocks if block.kind in ("assistant", "call")))


def in_use(conversation: Conversation, at: int, step: int, turns: int, least: int) -> bool:
    """Whether the model named at least `least` terms in its last `turns` turns that no result newer than `at` shows."""
    start = conversation.ends[max(0, step - turns)]
    left = identifiers_in(conversation.blocks[at].text) & mentioned(conversation, start - 1, step)
    for block in conversation.blocks[at + 1 : conversation.ends[step]]:
        if len(left) < least:
            return False
        if block.kind == "result":
            left -= identifiers_in(block.text)
    return len(left) >= least
