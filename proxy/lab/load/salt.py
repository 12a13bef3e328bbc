"""Texts made anew for each conversation of a load, so that no cache of the target knows one from another.

Laws
  Two spellings share no text that has a word of six letters; sizes stay.
  Within a conversation what was equal stays equal, and whole words of a text stay words of it: what was quoted, read
  again or edited still fits. Names of tools, of fields and of arguments, ids and signatures stay.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

SALTS = 26**4
_WORD = re.compile(r"[A-Za-z]{6,}")
_TEXTS = frozenset({"text", "content", "output", "system", "instructions"})
_ARGUMENTS = frozenset({"arguments", "input"})


class Salt:
    """One of SALTS ways to spell: the last four letters of each long word are moved along the alphabet."""

    def __init__(self, number: int) -> None:
        number %= SALTS
        self._shifts = [number // 26**place % 26 for place in range(4)]
        self._words: dict[str, str] = {}

    def text(self, text: str) -> str:
        return _WORD.sub(self._word, text)

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """An entry of a history, or any part of it, with its texts spelled anew."""
        return {name: self._value(name, value) for name, value in message.items()}

    def _value(self, name: str, value: Any) -> Any:
        if name in _ARGUMENTS and isinstance(value, str):
            return self._encoded_arguments(value)
        if name in _ARGUMENTS and isinstance(value, Mapping):
            return mapped(self.text, value)
        if isinstance(value, str):
            return self.text(value) if name in _TEXTS else value
        if isinstance(value, Mapping):
            return self.message(value)
        return [self._value(name, each) for each in value] if isinstance(value, Sequence) else value

    def _encoded_arguments(self, arguments: str) -> str:
        try:
            decoded = orjson.loads(arguments)
        except ValueError:
            return self.text(arguments)  # of a tool that takes a text
        return orjson.dumps(mapped(self.text, decoded)).decode()

    def _word(self, match: re.Match[str]) -> str:
        word = match[0]
        salted = self._words.get(word)
        if salted is None:
            end = "".join(map(_moved, word[-4:], self._shifts))
            salted = self._words[word] = word[:-4] + end
        return salted


def mapped(change: Callable[[str], str], value: Any) -> Any:
    """A JSON value with all its texts changed, but for the names of its fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(change, each) for name, each in value.items()}
    return [mapped(change, each) for each in value] if isinstance(value, Sequence) else value


def _moved(letter: str, by: int) -> str:
    first = ord("a" if letter.islower() else "A")
    return chr(first + (ord(letter) - first + by) % 26)
