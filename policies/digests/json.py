"""JSON: its shape, and as many of its values as fit: errors and rare ones, the first and the last.

Objects with the same keys become a table: the keys once, then the values of each. Laws: a value is shown as the very
text of the original, white space between values apart; an object that repeats a key stays in one piece.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import msgspec

from policies.digests.rows import Row, Source, render
from policies.model.rawjson import Span, UnreadableError, items, members
from policies.text.excerpt import ERROR

_LONGEST_TEXT = 128_000
_LOOKED_AT = 64_000
_LETTERS = 4
"""Characters of a token, as rows are counted; JSON has fewer."""
_MOST_PIECES = 6_000
_ONE_PIECE_BYTES = 120
_DEEP = 12
_TABLE_ROWS = 3
_ROWS_AT_EITHER_END = 400
_KEYS = 40
_SHAPE = 3
"""A shape takes at most a third of the room."""
_RARE, _FAR = 20, 8
_OPENS = re.compile(rb"^[ \t]{0,100}[\[{]", re.M)
_NOTHING = re.compile(
    rb'"[^"\\\n]{0,80}"[ \t]{0,4}:[ \t]{0,4}(?:null|false|0|""|\[\s{0,20}\]|\{\s{0,20}\})(?=\s{0,80}[,}])'
)
_CODE = re.compile(r'"(?:exit|return|status)[_ ]?(?:code|status)" ?:', re.I)
_ESCAPE = re.compile(rb"\\(.)", re.S)
_TYPES = {b'"': "str", b"{": "object", b"[": "array", b"t": "bool", b"f": "bool", b"n": "null"}


@dataclass(frozen=True, slots=True)
class _Piece:
    at: int
    text: bytes
    worth: int = 0
    wrong: bool = False


def json_digest(source: Source) -> str:
    """As much of the JSON as fits; "" for a file with lines. Raises ValueError or RecursionError for other texts."""
    if len(source.text) > _LONGEST_TEXT or (source.kind == "file" and len(source.lines) > len(source.text) // 200 + 2):
        return ""
    sample = source.text[:_LOOKED_AT]
    letters = min(_LETTERS, len(sample) / max(1, source.cost(sample)))
    room = int(source.budget * letters)
    if room < _ONE_PIECE_BYTES:
        return ""
    raw = source.text.encode()
    start, end, lines = _body(raw)
    body = _array(raw, (start, end), lines, room) if lines else _value(raw, (start, end), room)
    pieces = [*_around(raw, 0, start), *islice(body, _MOST_PIECES + 1), *_around(raw, end, len(raw))]
    if len(pieces) > _MOST_PIECES:
        return ""
    ends = [*(piece.at for piece in pieces[1:]), len(raw)]
    rows = [
        Row(f"{piece.text.decode()}\n", len(raw[piece.at : end].decode()), piece.worth, piece.wrong)
        for piece, end in zip(pieces, ends, strict=True)
    ]
    short = render(rows, replace(source, budget=room // _LETTERS, cost=lambda text: len(text) // _LETTERS))
    return short if len(short) * 3 > room else ""  # less means that the pieces were too large to fit


def _body(raw: bytes) -> tuple[int, int, list[Span]]:
    """Where the JSON begins and ends, and its objects where there is one on each line. Raises UnreadableError."""
    opens = _OPENS.search(raw, 0, 2_000)  # where it begins later, the text is something else
    end = max(raw.rfind(b"}"), raw.rfind(b"]")) + 1
    if not opens or end - opens.end() < _ONE_PIECE_BYTES:
        raise UnreadableError("no JSON")
    start = opens.end() - 1
    try:
        items(raw, start, end) if raw[start : start + 1] == b"[" else members(raw, start, end)
        return start, end, []
    except UnreadableError:
        lines, at = list[Span](), start
    for line in raw[start:end].splitlines(keepends=True):
        if line.strip():
            lines.append((at, at + len(line.rstrip())))
            members(raw, *lines[-1])
        at += len(line)
    if len(lines) < _TABLE_ROWS or any(raw[at : at + 1] != b"{" for at, _ in lines):
        raise UnreadableError("no JSON")
    return start, end, lines


def _around(raw: bytes, start: int, end: int) -> Iterator[_Piece]:
    for line in raw[start:end].splitlines(keepends=True):
        if line.strip():
            yield _Piece(start, line.rstrip(), wrong=ERROR.search(line.decode()))
        start += len(line)


def _value(raw: bytes, span: Span, room: int, lead: bytes = b"", deep: int = 0) -> Iterator[_Piece]:
    """A value in as many pieces as it takes. `lead` is its key with the colon, `room` is for all pieces."""
    at, end = span
    opening = raw[at : at + 1]
    if end - at <= _ONE_PIECE_BYTES or deep > _DEEP:
        yield _one_piece(raw, span, lead)
    elif opening == b"[":
        yield from _array(raw, span, items(raw, at, end), room, lead, deep)
    elif opening == b"{":
        yield _Piece(at - len(lead), lead + b"{")
        for key, child in _members(raw, span):
            yield from _value(raw, child, room, key + b": ", deep + 1)
        yield _Piece(end - 1, b"}", -1)
    else:  # a long string, line by line where it holds line ends
        starts = [at, *(at + m.end() for m in _ESCAPE.finditer(raw[at:end]) if m[1] == b"n"), end]
        for start, stop in pairwise(starts):
            if start < stop:
                yield _Piece(start - len(lead), lead + raw[start:stop], wrong=ERROR.search(raw[start:stop].decode()))
            lead = b""


def _one_piece(raw: bytes, span: Span, lead: bytes = b"", worth: int = 0) -> _Piece:
    value = _one_line(raw[slice(*span)])
    return _Piece(span[0] - len(lead), lead + value, worth, _tells_error(lead + value))


def _tells_error(text: bytes) -> bool:
    """True where it tells of an error, or of the exit status; a key about errors does not, where its value is empty."""
    return bool(_CODE.search(text.decode()) or ERROR.search(_NOTHING.sub(b"", text).decode()))


def _one_line(value: bytes) -> bytes:
    if b"\n" not in value:
        return value
    try:
        return msgspec.json.format(value, indent=0)
    except msgspec.DecodeError:  # half of a surrogate pair
        return b" ".join(value.split())


def _members(raw: bytes, span: Span) -> Iterator[tuple[bytes, Span]]:
    last = span[0] + 1
    for start, end in members(raw, *span).values():
        yield raw[last:start].strip(b", \t\r\n").rstrip(b": \t\r\n"), (start, end)
        last = end


def _array(
    raw: bytes, span: Span, spans: Sequence[Span], room: int, lead: bytes = b"", deep: int = 0
) -> Iterator[_Piece]:
    """An array: objects with their shape before them where there is room for it, other values in runs."""
    in_one_piece = False
    if len(spans) >= _TABLE_ROWS and all(raw[at : at + 1] == b"{" for at, _ in spans):
        objects = list(_objects(raw, span[0] - len(lead), spans, lead))
        if len(objects[0].text) * _SHAPE < room:
            yield from objects
            return
        in_one_piece = max(end - at for at, end in spans) * _SHAPE < room
    yield _Piece(span[0] - len(lead), lead + b"[")
    for start, end, long in _runs(spans):
        if long and not in_one_piece:
            yield from _value(raw, (start, end), room, deep=deep + 1)
        else:
            yield _one_piece(raw, (start, end))
    yield _Piece(span[1] - 1, b"]", -1)


def _runs(spans: Sequence[Span]) -> Iterator[tuple[int, int, bool]]:
    """Where short values side by side begin and end, and where a long value does (True)."""
    start = stop = -1
    for at, end in spans:
        if start >= 0 and end - start > _ONE_PIECE_BYTES:
            yield start, stop, False
            start = -1
        if end - at > _ONE_PIECE_BYTES:
            yield at, end, True
        else:
            start = at if start < 0 else start
            stop = end
    if start >= 0:
        yield start, stop, False


def _objects(raw: bytes, at: int, spans: Sequence[Span], lead: bytes) -> Iterator[_Piece]:
    """Objects: their shape, then each of them; as a table where all have the same keys. Of very many, those in the
    middle are parsed only where they tell of errors."""
    indexes, middle = [*range(len(spans))], range(_ROWS_AT_EITHER_END, len(spans) - _ROWS_AT_EITHER_END)
    if middle:
        any_error = _tells_error(raw[spans[middle[0]][0] : spans[middle[-1]][1]])
        wrong = [i for i in middle if any_error and _tells_error(raw[slice(*spans[i])])]
        indexes = [*indexes[:_ROWS_AT_EITHER_END], *wrong[-_ROWS_AT_EITHER_END // 4 :], *indexes[-_ROWS_AT_EITHER_END:]]
    rows = list[Mapping[bytes, Span]]()
    for i in indexes:
        try:
            rows.append(dict(_members(raw, spans[i])))
        except UnreadableError:  # it repeats a key
            rows.append({})
    table = len({tuple(row) for row in rows}) == 1 and bool(rows[0])
    what = b"values of each of" if table else b"of"
    yield _Piece(at, lead + b"[%d objects, %s %s]" % (len(spans), what, _shape(raw, rows)), 9)
    for i, below, row, worth in zip(indexes, [*indexes[1:], len(spans)], rows, _worths(raw, rows), strict=True):
        piece = _one_piece(raw, spans[i], worth=worth)
        if table:
            values = b", ".join(_one_line(raw[slice(*value)]) for value in row.values())
            piece = _Piece(piece.at, b"[" + values + b"]", worth, piece.wrong)
        yield piece
        if below > i + 1:
            start = spans[i + 1][0]
            yield _Piece(start, raw[start : spans[below - 1][1]], -1)


def _type(raw: bytes, span: Span) -> str:
    return _TYPES.get(raw[span[0] : span[0] + 1], "number")


def _shape(raw: bytes, rows: Sequence[Mapping[bytes, Span]]) -> bytes:
    types = defaultdict[bytes, Counter[str]](Counter)
    for row in rows:
        for key, span in row.items():
            types[key][_type(raw, span)] += 1
    keys = []
    for key, counts in [*types.items()][:_KEYS]:
        part = f" ({counts.total()})" if counts.total() < len(rows) else ""
        keys.append(key + f": {'|'.join(sorted(counts))}{part}".encode())
    more = [b"%d more keys" % (len(types) - _KEYS)] if len(types) > _KEYS else []
    return b"{" + b", ".join(keys + more) + b"}"


def _worths(raw: bytes, rows: Sequence[Mapping[bytes, Span]]) -> list[int]:
    """The worth of each object: the first and last count, those with rare types, and those with a number that lies many
    times further from the middle of its column than most numbers do."""
    forms = [tuple((key, _type(raw, span)) for key, span in row.items()) for row in rows]
    columns: dict[bytes, list[tuple[float, int]]] = {}
    for i, row in enumerate(rows):
        for key, span in row.items():
            if _type(raw, span) == "number" and span[1] - span[0] < _DEEP:
                columns.setdefault(key, []).append((float(raw[slice(*span)]), i))
    often, outliers = Counter(forms), set[int]()
    for column in columns.values():
        if len(column) >= _FAR:
            middle = sorted(column)[len(column) // 2][0]
            usual = sorted(abs(value - middle) for value, _ in column)[len(column) * 3 // 4]
            outliers.update(i for value, i in column if usual and abs(value - middle) > _FAR * usual)
    worths = []
    for i, form in enumerate(forms):
        rare = often[form] * _RARE <= len(rows) or (len(rows) >= _FAR and often[form] == 1)
        worths.append(2 * rare + 3 * (i in (0, len(rows) - 1)) + 2 * (i in outliers))
    return worths
