"""Texts that stay as they are: what people name, by patterns for tools, paths and texts; and what is in force.

In a pattern `*` stands for any characters, and all else for itself. It names a tool by its name, or a path in a call by
the whole of it or by its end behind a slash: `*.sql`, `db/*.sql`, `schema.sql`. What begins with `text:` names whatever
holds these words.

In force are what subagents reported and instructions read from files or skills: until the same is asked for again, and
the newest of them in a tenth of the window together. They stay results of the tools that returned them.

Laws
  A block is named by its own text, its tool, or the call that it is or answers: whatever comes later changes nothing.
  Each block is compared once under the same patterns.
  What is no more in force never is again, so that no text comes back. Only the last resort removes what is in force.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256

from policies.model.conversation import Block, Conversation, Index
from policies.tools import Kinds, Toolbox, ToolKind, paths_of, subject_of

Patterns = tuple[str, ...]

MOST_PATTERNS, LONGEST_PATTERN = 32, 256
TEXT = "text:"
_SHORTEST_TEXT = 4
_OF_TOOLS = frozenset({"call", "result", "opaque"})
_AT_ONCE = 2**16
"""Characters that are compared with a pattern in about the time of one item of planning, at worst."""


def patterns_of(values: Iterable[str]) -> Patterns:
    """The patterns among these values. Raises ValueError, which says what is wrong with which and what to do."""
    patterns = tuple(sorted({value.strip() for value in values}))
    if len(patterns) > MOST_PATTERNS:
        raise ValueError(f"{len(patterns)} patterns are too many; give at most {MOST_PATTERNS}")
    for pattern in patterns:
        if fault := _fault(pattern):
            raise ValueError(f"{pattern[:64]!r} {fault}")
    return patterns


def joined(*lists: Patterns) -> Patterns:
    return tuple(sorted({pattern for each in lists for pattern in each}))


@lru_cache(maxsize=64)  # a pure function, like those below, so the cache changes nothing but the time it takes
def digest_of(patterns: Patterns) -> str:
    """A short name for these patterns; empty where there are none."""
    joined = "\0".join(patterns).encode("utf-8", "surrogatepass")
    return sha256(joined).hexdigest()[:16] if patterns else ""


def _fault(pattern: str) -> str:
    if not pattern:
        return "names nothing; give a tool, a path or text:WORDS"
    if len(pattern) > LONGEST_PATTERN:
        return f"has {len(pattern)} characters; give at most {LONGEST_PATTERN}"
    is_short = pattern.startswith(TEXT) and len(_words(pattern)) < _SHORTEST_TEXT
    return f"is too short; a text needs {_SHORTEST_TEXT} characters or more" if is_short else ""


def _words(pattern: str) -> str:
    return pattern.removeprefix(TEXT).strip()


@lru_cache(maxsize=64)
def _parts(patterns: Patterns) -> tuple[Sequence[Sequence[str]], Sequence[str]]:
    """The texts between the `*` of patterns for tools and paths, each behind a slash; and the texts to look for."""
    names = (pattern.replace("\\", "/").replace("**/", "*") for pattern in patterns if not pattern.startswith(TEXT))
    texts = [_words(pattern) for pattern in patterns if pattern.startswith(TEXT)]
    return [f"/{name}".split("*") for name in names], texts


@lru_cache(maxsize=4096)
def _fits(patterns: Patterns, name: str) -> bool:
    """True where one of the patterns fits the name of a tool or a path, or its end behind a slash."""
    text = "/" + name.replace("\\", "/")
    return any(_fits_one(parts, text) for parts in _parts(patterns)[0])


def _fits_one(parts: Sequence[str], text: str) -> bool:
    *before, last = parts
    if not before:
        return text.endswith(last)
    at = 0
    for part in before:  # where each stands first: that leaves most room for the others
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return len(text) - at >= len(last) and text.endswith(last)


def names(patterns: Patterns, conversation: Conversation, at: int) -> bool:
    """True where a pattern names a block: its tool, a path in the call that it is or answers, or words in it."""
    block, (wildcards, texts) = conversation.blocks[at], _parts(patterns)
    if texts and block.kind != "opaque" and any(text in block.text for text in texts):
        return True
    if not wildcards or block.kind not in _OF_TOOLS:
        return False
    if block.tool and _fits(patterns, block.tool[: 2 * LONGEST_PATTERN]):
        return True
    call = block if block.answers is None else conversation.blocks[block.answers]
    return call.kind == "call" and any(_fits(patterns, path) for path in paths_of(call.text))


@dataclass(slots=True)
class _PatternMatches:
    """The blocks and turns that patterns name, as far as they were looked at."""

    patterns: Patterns = ()
    blocks: dict[int, bool] = field(default_factory=dict)
    turns: dict[int, bool] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=lambda: [0])
    """The tokens that stay of turns with a block that is named, before each turn: without what people wrote."""

    def under(self, patterns: Patterns) -> "_PatternMatches":
        if self.patterns != patterns:
            self.patterns, self.blocks, self.turns, self.tokens = patterns, {}, {}, [0]
        return self

    def cut(self, blocks: Sequence[Block], end: int) -> None:
        turn = max(0, blocks[end].turn - 1)  # results may stand behind what a person wrote since
        self.blocks = {at: is_named for at, is_named in self.blocks.items() if at < end}
        self.turns = {each: is_named for each, is_named in self.turns.items() if each < turn}
        del self.tokens[turn + 1 :]


_MATCHES = Index[Block, _PatternMatches](_PatternMatches, lambda *_: None, _PatternMatches.cut)


def _tokens_of(conversation: Conversation, turn: int) -> int:
    every = _blocks_of(conversation, turn)
    return conversation.tokens(at for at in every if not conversation.blocks[at].from_person)


def _is_complete(conversation: Conversation, turn: int) -> bool:
    """True where the model has answered since: nothing can be added to the turn any more."""
    return turn + 2 < conversation.steps


def _blocks_of(conversation: Conversation, turn: int) -> Iterator[int]:
    """The blocks of a turn but for system text."""
    around = range(conversation.start(turn), conversation.ends[min(turn + 1, conversation.steps - 1)])
    blocks = conversation.blocks
    return (at for at in around if blocks[at].turn == turn and blocks[at].kind != "system")


_SHARE, _MOST = 10, 20_000
"""Texts in force may fill a tenth of the window, and so many tokens at most: that is a tenth of a usual window. More
left no more in sight in two sessions of Claude Code with windows of a million tokens, nor in two others."""
_LEAST: Mapping[ToolKind, int] = {"report": 250, "instructions": 60}
"""Tokens of the shortest output of each kind that is in force: a shorter one says that there is none yet."""
_SHORTEST = min(_LEAST.values())


@dataclass(frozen=True, slots=True)
class LastingTexts:
    """The blocks in force at a step and their turns, and the blocks that are no more in force with this step."""

    blocks: frozenset[int] = frozenset()
    turns: frozenset[int] = frozenset()
    gone: tuple[int, ...] = ()


NOTHING = LastingTexts()


class _InForce:
    """The texts in force at the newest step that was looked at, by subject, the oldest first."""

    def __init__(self) -> None:
        self.under: tuple[Kinds, int] = {}, 0
        self.begin(*self.under)

    def begin(self, kinds: Kinds, room: int) -> None:
        self.under, self.step, self.end, self.tokens = (kinds, room), -1, 0, 0
        self.newest: dict[str, int] = {}
        self.result = NOTHING

    def go_on(self, conversation: Conversation, toolbox: Toolbox, pause: Callable[[int], object]) -> None:
        blocks, lasting, gone = conversation.blocks, list[tuple[int, str]](), list[int]()
        for at in conversation.arrived(self.step + 1):
            block = blocks[at]
            if block.kind == "result" and block.answers is not None and block.tokens >= _SHORTEST:
                pause(1)
                arguments = blocks[block.answers].text
                kind = toolbox.lasting_kind(block.tool, arguments, block.text)
                if kind and block.tokens >= _LEAST[kind]:
                    lasting.append((at, subject_of(block.tool, arguments)))
        self.step += 1  # nothing was changed until here, where planning may be stopped
        self.end = conversation.ends[self.step]
        for at, subject in lasting:
            older = self.newest.get(subject)
            if older is not None and blocks[older].text == blocks[at].text:
                continue  # the later copy may point to the earlier one
            if older is not None:
                del self.newest[subject]
                self.tokens -= blocks[older].tokens
                gone.append(older)
            self.newest[subject] = at
            self.tokens += blocks[at].tokens
        while self.tokens > self.under[1]:
            at = self.newest.pop(next(iter(self.newest)))
            self.tokens -= blocks[at].tokens
            gone.append(at)
        if gone or lasting:
            staying = frozenset(self.newest.values())
            self.result = LastingTexts(staying, frozenset(blocks[at].turn for at in staying), tuple(gone))
        elif self.result.gone:
            self.result = replace(self.result, gone=())


_IN_FORCE = Index[Block, _InForce](_InForce, lambda *_: None, lambda standing, *_: standing.begin(*standing.under))


def in_force(
    conversation: Conversation, step: int, toolbox: Toolbox, window: int, pause: Callable[[int], object]
) -> LastingTexts:
    """The texts in force at a step; `window` is the model's, in tokens. Steps are looked at once, in order."""
    texts, under = _IN_FORCE.of(conversation), (toolbox.configured, min(window // _SHARE, _MOST))
    grown = texts.step >= 0 and conversation.ends[texts.step] != texts.end  # results that came one by one
    if texts.under != under or step < texts.step or grown:
        texts.begin(*under)
    while texts.step < step:
        texts.go_on(conversation, toolbox, pause)
    return texts.result


@dataclass(frozen=True, slots=True)
class Protection:
    """The texts left as they are at one step: those that people name, and those in force."""

    patterns: Patterns = ()
    in_force: LastingTexts = NOTHING
    pause: Callable[[int], object] = lambda _: None

    @property
    def is_any(self) -> bool:
        return bool(self.patterns or self.in_force.blocks)

    def keeps(self, conversation: Conversation, at: int) -> bool:
        return at in self.in_force.blocks or (bool(self.patterns) and self._is_named(conversation, at))

    def keeps_turn(self, conversation: Conversation, turn: int) -> bool:
        """True where a turn has such a block: then no fold replaces any of it. System text belongs to none."""
        return turn in self.in_force.turns or (bool(self.patterns) and self._is_turn_named(conversation, turn))

    def keeps_turn_of(self, conversation: Conversation, at: int) -> bool:
        """True where no fold may replace a block for this."""
        block = conversation.blocks[at]
        is_system = block.kind == "system"
        return self.keeps(conversation, at) if is_system else self.keeps_turn(conversation, block.turn)

    def tokens_in(self, conversation: Conversation, turns: range) -> int:
        """The tokens that stay of such turns, as the client wrote them, without what people wrote; added up once."""
        lasting = [turn for turn in self.in_force.turns if turn in turns]
        tokens = sum(_tokens_of(conversation, turn) for turn in lasting)
        if not self.patterns:
            return tokens
        tokens -= sum(self._staying(conversation, turn) for turn in lasting)
        sums = _MATCHES.of(conversation).under(self.patterns).tokens
        while len(sums) <= turns.stop and _is_complete(conversation, len(sums) - 1):
            sums.append(sums[-1] + self._staying(conversation, len(sums) - 1))
        last = len(sums) - 1
        newest = (self._staying(conversation, turn) for turn in range(max(turns.start, last), turns.stop))
        return tokens + sums[min(last, turns.stop)] - sums[min(last, turns.start)] + sum(newest)

    def _is_named(self, conversation: Conversation, at: int) -> bool:
        blocks = _MATCHES.of(conversation).under(self.patterns).blocks
        if (result := blocks.get(at)) is None:
            self.pause(1 + len(conversation.blocks[at].text) * len(self.patterns) // _AT_ONCE)
            result = blocks[at] = names(self.patterns, conversation, at)
        return result

    def _is_turn_named(self, conversation: Conversation, turn: int) -> bool:
        turns = _MATCHES.of(conversation).under(self.patterns).turns
        if (result := turns.get(turn)) is None:
            result = any(self._is_named(conversation, at) for at in _blocks_of(conversation, turn))
            if _is_complete(conversation, turn):
                turns[turn] = result
        return result

    def _staying(self, conversation: Conversation, turn: int) -> int:
        return _tokens_of(conversation, turn) if self._is_turn_named(conversation, turn) else 0


NO_PROTECTION = Protection()
