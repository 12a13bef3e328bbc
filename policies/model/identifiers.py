"""Identifiers in a text: paths, names, numbers. Those that later turns mention must stay in sight."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import chain

from policies.model.conversation import Conversation

_ENDINGS = "py|js|ts|tsx|c|h|cc|cpp|go|rs|java|rb|md|rst|txt|toml|cfg|ini|json|ya?ml|sh|html|css|sql"
_PATH = re.compile(rf"(?<![\w/.~-])(?:(?:[\w.~-]{{0,80}}/){{1,20}}[\w.-]{{0,80}}\w|[\w-]{{1,80}}\.(?:{_ENDINGS})\b)")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w{0,80}(?:\.[A-Za-z_]\w{0,80}){0,8}")
_NUMBER = re.compile(r"(?<![\w.])\d{3,18}(?![\w.]*\w)")
_NAMELIKE = re.compile(r"[_.\d]|[a-z][A-Z]")

_TOKEN = re.compile(r"[\w./~-]+")
"""What an identifier lies in: it begins where nothing of this stands before, and all that it looks at is inside."""
_LONGEST_TOKEN = 200
"""Characters of a token whose identifiers are remembered."""
_REMEMBERED = 16_000
_LOOKED_AT = 64_000
_AT_ONCE = 16_000


def identifiers_in(text: str) -> frozenset[str]:
    """Every path, name-like identifier (snake_case, camelCase, dotted) and number of three digits or more. Of a text
    beyond 128,000 characters only both ends are looked at."""
    if len(text) <= _REMEMBERED:
        return _remembered(text)
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    return _remembered_long(text)


def all_identifiers_in(text: str) -> frozenset[str]:
    """As `identifiers_in`, but of all of a text and without the cache."""
    return frozenset().union(*map(identifiers_of_line, _pieces(text)))


def _pieces(text: str) -> Iterator[str]:
    """The text in parts, at line ends where possible: one search of a large text would block other threads."""
    start = 0
    while len(text) - start > _AT_ONCE:
        end = text.rfind("\n", start, start + _AT_ONCE) + 1 or start + _AT_ONCE
        yield text[start:end]
        start = end
    yield text[start:]


def identifier_counts(text: str) -> Counter[str]:
    """How often each identifier occurs in the text (in its first 64,000 characters)."""
    counts = Counter[str]()
    for piece in _pieces(text[:_LOOKED_AT]):
        counts.update(_in_tokens(_TOKEN.findall(piece)))
    return counts


def identifiers_of_line(text: str) -> frozenset[str]:
    """As `identifiers_in`, of a text that is short and hardly asked for twice."""
    tokens = set(_TOKEN.findall(text))
    if len(text) <= _LONGEST_TOKEN:
        return frozenset(chain.from_iterable(map(_in_short_token, tokens)))
    return frozenset(_in_tokens(tokens))


# pure functions of their argument, so remembering changes nothing but the time it takes
@lru_cache(maxsize=32_768)
def _in_short_token(token: str) -> tuple[str, ...]:
    words = (word for word in _WORD.findall(token) if len(word) >= 4 and _NAMELIKE.search(word))
    return (*_PATH.findall(token), *words, *_NUMBER.findall(token))


def _in_tokens(tokens: Collection[str]) -> Iterator[str]:
    """The identifiers of tokens, one as often as it is one in two ways."""
    if max(map(len, tokens), default=0) <= _LONGEST_TOKEN:
        return chain.from_iterable(map(_in_short_token, tokens))
    remembered, anew = _in_short_token, _in_short_token.__wrapped__
    each = ((remembered if len(token) <= _LONGEST_TOKEN else anew)(token) for token in tokens)
    return chain.from_iterable(each)


_remembered = lru_cache(maxsize=16_384)(identifiers_of_line)
_remembered_long = lru_cache(maxsize=64)(all_identifiers_in)


def mentioned(conversation: Conversation, after: int, step: int) -> frozenset[str]:
    """The identifiers in the model's prose and calls after the block `after`, up to the request of `step`."""
    blocks = conversation.blocks[after + 1 : conversation.ends[step]]
    return frozenset().union(*(identifiers_in(block.text) for block in blocks if block.kind in ("assistant", "call")))


def in_use(conversation: Conversation, at: int, step: int, turns: int, least: int) -> bool:
    """Whether the model's last `turns` turns mention `least` identifiers of a result that no newer result shows."""
    start = conversation.ends[max(0, step - turns)]
    left = identifiers_in(conversation.blocks[at].text) & mentioned(conversation, start - 1, step)
    for block in conversation.blocks[at + 1 : conversation.ends[step]]:
        if len(left) < least:
            return False
        if block.kind == "result":
            left -= identifiers_in(block.text)
    return len(left) >= least
