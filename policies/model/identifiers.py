"""Identifiers in a text: paths, names, numbers. Those that later turns mention must stay in sight."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from policies.model.conversation import Block, Conversation, Index

_ENDINGS = "py|js|ts|tsx|c|h|cc|cpp|go|rs|java|rb|md|rst|txt|toml|cfg|ini|json|ya?ml|sh|html|css|sql"
_PATH = re.compile(rf"(?<![\w/.~-])(?:(?:[\w.~-]{{0,80}}/){{1,20}}[\w.-]{{0,80}}\w|[\w-]{{1,80}}\.(?:{_ENDINGS})\b)")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w{0,80}(?:\.[A-Za-z_]\w{0,80}){0,8}")
_NUMBER = re.compile(r"(?<![\w.])\d{3,18}(?![\w.]*\w)")
_NAMELIKE = re.compile(r"[_.\d]|[a-z][A-Z]")
_LONGEST_WORD = 81
_TELLS = re.compile(r"[_.\d/]|[a-z][A-Z]")
"""Each token with an identifier in it has one of these."""

_TOKEN = re.compile(r"[\w./~-]+")
"""The stretch that an identifier lies in: all that it looks at is inside, and nothing of this stands before it."""
_SEPARATED = bytes(code if code < 128 and _TOKEN.fullmatch(chr(code)) else ord(" ") for code in range(256))
_SEPARATED_LINES = bytes(code if code == ord("\n") else _SEPARATED[code] for code in range(256))
"""The replacement of each byte of an ASCII text: all that no identifier lies in is blank, or all but line ends."""
_LONGEST_REMEMBERED_TOKEN = 200
_SHORT, _REMEMBERED = 1_000, 16_000
_LOOKED_AT = 64_000
_AT_ONCE = 16_000


def identifiers_in(text: str) -> frozenset[str]:
    """Every path, name-like identifier (snake_case, camelCase, dotted) and number of three digits or more. Of a text
    beyond 128,000 characters only both ends are looked at."""
    if len(text) <= _REMEMBERED:
        return (_remembered_short if len(text) <= _SHORT else _remembered)(text)
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


def identifier_counts(text: str) -> Mapping[str, int]:
    """How often each identifier occurs in the text (in its first 64,000 characters)."""
    return (_counts if len(text) <= _REMEMBERED else _counts.__wrapped__)(text)


@lru_cache(maxsize=128)  # a text is cut more than once
def _counts(text: str) -> Mapping[str, int]:
    counts = Counter[str]()
    for piece in _pieces(text[:_LOOKED_AT]):
        counts.update(_in_tokens(_tokens(piece)))
    return counts


def identifiers_of_line(text: str) -> frozenset[str]:
    """As `identifiers_in`, of a text that is short and hardly asked for twice."""
    tokens = set(_tokens(text))
    if len(text) <= _LONGEST_REMEMBERED_TOKEN:
        return frozenset(chain.from_iterable(map(_in_short_token, tokens)))
    return frozenset(_in_tokens(tokens))


def identifiers_of_lines(lines: Sequence[str]) -> list[frozenset[str]]:
    """As `identifiers_of_line` of each of several lines, in half the time; line ends inside them do not matter."""
    text = "\n".join(lines)
    if text.count("\n") >= len(lines):
        return [identifiers_of_line(line) for line in lines]
    if not text.isascii():
        plain = iter(identifiers_of_lines([line for line in lines if line.isascii()]))
        return [next(plain) if line.isascii() else identifiers_of_line(line) for line in lines]
    tokens = [line.split() for line in text.encode().translate(_SEPARATED_LINES).decode().split("\n")]
    if max(map(len, lines)) > _LONGEST_REMEMBERED_TOKEN:
        return [frozenset(_in_tokens(each)) for each in tokens]
    return [frozenset(chain.from_iterable(map(_in_short_token, each))) for each in tokens]


def _tokens(text: str) -> list[str]:
    """The tokens of a text. To blank all else out and to split takes a fifth of the time, where the text is ASCII."""
    return text.encode().translate(_SEPARATED).decode().split() if text.isascii() else _TOKEN.findall(text)


# pure functions of their argument, so remembering changes nothing but the time it takes
@lru_cache(maxsize=32_768)
def _in_short_token(token: str) -> tuple[str, ...]:
    if token.isascii() and token.isidentifier() and len(token) <= _LONGEST_WORD:  # nearly always
        is_name = len(token) >= 4 and (not token.isalpha() or _NAMELIKE.search(token))
        return (token,) if is_name else ()
    if not _TELLS.search(token):
        return ()
    words = (word for word in _WORD.findall(token) if len(word) >= 4 and _NAMELIKE.search(word))
    return (*_PATH.findall(token), *words, *_NUMBER.findall(token))


def _in_tokens(tokens: Collection[str]) -> Iterator[str]:
    """The identifiers of tokens, one as often as it is one in two ways."""
    if max(map(len, tokens), default=0) <= _LONGEST_REMEMBERED_TOKEN:
        return chain.from_iterable(map(_in_short_token, tokens))
    remembered, anew = _in_short_token, _in_short_token.__wrapped__
    each = ((remembered if len(token) <= _LONGEST_REMEMBERED_TOKEN else anew)(token) for token in tokens)
    return chain.from_iterable(each)


# some 16 million characters each, however long the texts are
_remembered_short = lru_cache(maxsize=16_384)(identifiers_of_line)
_remembered = lru_cache(maxsize=1_024)(identifiers_of_line)
_remembered_long = lru_cache(maxsize=64)(all_identifiers_in)


_MENTIONED = Index[Block, dict[tuple[int, int], frozenset[str]]](dict, lambda *_: None, lambda late, *_: late.clear())
"""Identifiers that were collected lately, by the blocks that they are of."""
_LATE = 32


def mentioned(conversation: Conversation, after: int, step: int) -> frozenset[str]:
    """The identifiers in the model's prose and calls after the block `after`, up to the request of `step`."""
    span, late = (after + 1, conversation.ends[step]), _MENTIONED.of(conversation)
    if (names := late.get(span)) is not None:
        return names
    if len(late) >= _LATE:
        late.clear()
    blocks = (block for block in conversation.blocks[slice(*span)] if block.kind in ("assistant", "call"))
    late[span] = names = frozenset().union(*(identifiers_in(block.text) for block in blocks))
    return names


def in_use(conversation: Conversation, at: int, step: int, turns: int, least: int) -> bool:
    """True where the model's last `turns` turns mention `least` identifiers of a result that no newer result shows."""
    start, end = conversation.ends[max(0, step - turns)], conversation.ends[step]
    left = identifiers_in(conversation.blocks[at].text) & mentioned(conversation, start - 1, step)
    for i in range(at + 1, end):
        if len(left) < least:
            return False
        if conversation.blocks[i].kind == "result":
            left -= identifiers_in(conversation.blocks[i].text)
    return len(left) >= least
