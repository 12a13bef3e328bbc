"""Spans of raw JSON: whatever the spelling, they are what `json` reads, and nothing else moves."""

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from tests import examples

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(['"', "\\", '\\"', "}", "]", ",", ":", '{"a":1}', "\u2028", "🙂"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
WHITE = ("", "", " ", "\n", "\t \r\n")
quick = settings(deadline=None, max_examples=examples(200))


def spelled(value: Any, chance: random.Random) -> str:
    """JSON of the value with white space and escapes as chance has it."""
    space = chance.choice
    if isinstance(value, dict):
        inside = [
            f"{space(WHITE)}{json.dumps(k, ensure_ascii=chance.random() < 0.5)}{space(WHITE)}:{space(WHITE)}"
            f"{spelled(v, chance)}{space(WHITE)}"
            for k, v in value.items()
        ]
        return "{" + (",".join(inside) or space(WHITE)) + "}"
    if isinstance(value, list):
        inside = [f"{space(WHITE)}{spelled(v, chance)}{space(WHITE)}" for v in value]
        return "[" + (",".join(inside) or space(WHITE)) + "]"
    return json.dumps(value, ensure_ascii=chance.random() < 0.5)


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value in it, with its path."""
    yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in children:
        yield from places(inner, (*path, step))


@quick
@given(VALUES, st.randoms(use_true_random=False))
def test_a_span_holds_what_json_reads_there(value: Any, chance: random.Random) -> None:
    text = spelled(value, chance).encode()
    for path, expected in places(value):
        start, end = find(text, path)
        assert json.loads(text[start:end]) == expected
        assert text[start:end] == text[start:end].strip()


@quick
@given(VALUES, st.randoms(use_true_random=False))
def test_replaced_changes_only_the_slices_it_names(value: Any, chance: random.Random) -> None:
    text = spelled(value, chance).encode()
    leaves = [path for path, inner in places(value) if path and not isinstance(inner, dict | list)]
    chosen = {path: f'"@@{i}@@"'.encode() for i, path in enumerate(leaves) if chance.random() < 0.6}
    assume(b"@@" not in text)
    back = new = replaced(text, chosen)
    for path, marker in chosen.items():
        assert new[slice(*find(new, path))] == marker
        back = back.replace(marker, text[slice(*find(text, path))])
    assert back == text


def test_replaced_with_nothing_is_the_same_text() -> None:
    assert replaced(b' {"a" : 1e400 }\n', {}) == b' {"a" : 1e400 }\n'


def test_spelling_around_a_change_stays() -> None:
    text = b'{ "n":1E400,"big" :123456789012345678901234567890 , "a":"\\u00e9\\"", "b" : [1 ,\t2]}'
    assert replaced(text, {("b", 1): b"3"}) == text.replace(b"2]", b"3]")


def test_many_paths_in_one_holder_are_read_once() -> None:
    text = json.dumps([f"item {i} " * 30 for i in range(3000)]).encode()
    new = replaced(text, {(i,): b'""' for i in range(3000)})
    assert json.loads(new) == [""] * 3000


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{}x",
        b'{"a":1}}',
        b'{"a":1,}',
        b'{"a":01}',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":"\\x"}',
        b"[]",
        b"null",
        b'"{}"',
        b'{"a":"\xff\xfe',
        pytest.param(
            b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer Pythons bound nesting by the stack"),
        ),
    ],
)
def test_what_is_not_an_object_is_unreadable(text: bytes) -> None:
    with pytest.raises(UnreadableError):
        members(text)


@pytest.mark.parametrize("text", [b"", b"[", b"[1,]", b"{}", b"[1]]", b"[1] 2"])
def test_what_is_not_an_array_is_unreadable(text: bytes) -> None:
    with pytest.raises(UnreadableError):
        items(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"a":22}',
        b'{"a":12,"a":1}',
        b'{"a":{"x":1},"a":"abcd"}',
        b'{"a":{"x":1},"b":2,"a":"abcd"}',
        b'{"a":1,"b":2,"a":1}',
        b'{"a":1,"b":2,"b":2}',
        b'{"a":1,"\\u0061":2}',
        b'{"a":12,"1":1,"a":1}',
    ],
)
def test_a_repeated_key_is_unreadable(text: bytes) -> None:
    with pytest.raises(UnreadableError, match="repeated"):
        members(text)


@quick
@given(st.lists(st.tuples(st.sampled_from("abc"), VALUES), max_size=5), st.randoms(use_true_random=False))
def test_a_repeated_key_is_always_noticed(pairs: list[tuple[str, Any]], chance: random.Random) -> None:
    text = ("{" + ",".join(f'"{key}":{spelled(value, chance)}' for key, value in pairs) + "}").encode()
    if len({key for key, _ in pairs}) == len(pairs):
        assert list(members(text)) == [key for key, _ in pairs]
    else:
        with pytest.raises(UnreadableError):
            members(text)


def test_a_path_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        find(b'{"a":[1]}', ("b",))
