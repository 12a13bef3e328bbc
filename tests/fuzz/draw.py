"""From bytes that a fuzzer chose to values: the same bytes give the same ones, and any bytes give some."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Json = dict[str, Any]
WORDS = (
    *("alpha", "src/core/main.py", "Error: no", "4711", "def parse_line(text):", "return", "漢字", "🙂", '"', "\\n"),
    *(
        "\n",
        "\n\n",
        "{x}",
        "[narrows: rest: ref 482913]",
        "exit code 1",
        "\t",
        "=" * 40,
        '{"a": 1, "b": [2]}',
        "\ud83d",
    ),
    *("the parser reads one line after the other " * 4, "src/a.py:3: hit\n" * 12, "x" * 300, "- a\n+ b\n@@ -1 +1 @@\n"),
)


class Draw:
    """Takes bytes from the front; where none is left, zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def number(self, most: int) -> int:
        """From 0 to `most`, which is at most 255."""
        value = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return value % (most + 1)

    def one(self, among: Sequence[T]) -> T:
        return among[self.number(len(among) - 1)]

    def some(self, most: int, what: Callable[[], T]) -> list[T]:
        return [what() for _ in range(self.number(most))]

    def rest(self) -> bytes:
        rest = bytes(self._data[self._at :])
        self._at = len(self._data)
        return rest

    def text(self, most: int = 24) -> str:
        """Words, or letters as they come; the halves of a pair are none that a client could write."""
        if self.number(3):
            words = " ".join(self.some(most, lambda: self.one(WORDS)))
            return words.encode("utf-8", "replace").decode()
        size = self.number(40)
        return bytes(self.number(255) for _ in range(size)).decode("utf-8", "replace")

    def json(self, deep: int = 3) -> Any:
        kind = self.number(7 if deep else 4)
        if kind < 2:
            return self.text()
        if kind < 5:
            return (None, self.number(255) * 10 ** self.number(20), self.number(1) == 1)[kind - 2]
        if kind == 5:
            return self.some(4, lambda: self.json(deep - 1))
        return {self.text(2): self.json(deep - 1) for _ in range(self.number(4))}

    def session(self, most: int = 8) -> list[Json]:
        """A valid history in chat completions, up to what the model is asked next."""
        messages: list[Json] = [{"role": "system", "content": self.text()}] * self.number(1)
        messages.append({"role": "user", "content": self.text() or "go"})
        for _ in range(1 + self.number(most)):
            calls = self.some(3, self._call)
            for at, call in enumerate(calls):
                call["id"] = f"call_{at}"
            messages.append({"role": "assistant", "content": self.text(), **({"tool_calls": calls} if calls else {})})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": self.text(80)} for call in calls]
            if not calls or self.number(3) == 0:
                messages.append({"role": "user", "content": self.text() or "go on"})
        return messages

    def _call(self) -> Json:
        name = self.one(("bash", "write_file", "think"))
        fields: Json = {"bash": {"command": self.text()}, "write_file": {"path": "a.py", "content": self.text(60)}}.get(
            name, {}
        )
        arguments = fields or {"thought": self.json()}
        ensure = self.number(1) == 1
        return {
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=ensure)},
        }
