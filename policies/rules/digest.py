"""Large outputs become digests one step after they arrived: by a cheap model if its answer is there, else by rule.

Laws
  A digest by a model is wanted when the output arrives, and only where it will pay.
  Errors stay word for word: those that a model leaves out are added, the last one always.
  Of a file one section stays as it is (policies.rules.digest), beside digests of the parts before and after it. With a
  model it is the section that the model was told of, so that no line is left out by both; by rule it is chosen by what
  was mentioned since.
  Every digest ends with the way back; a digest by rule has at most `max_chars` characters besides.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate

from policies.context import Context, DigestWant
from policies.digests import digested
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.identifiers import mentioned
from policies.model.memory import ModelDigest
from policies.model.parameters import Large, Trigger, amounts, parameter
from policies.money.prices import Prices
from policies.rules.base import ConfiguredPolicy, Conflict, large_outputs, policy
from policies.text.excerpt import (
    DEFINES,
    ERROR,
    STATUS,
    cut_inside,
    excerpt,
    identifiers_present,
    lines_of,
    matching,
    places_of,
    readable,
)
from policies.text.stubs import way_back
from policies.text.transcript import indented
from policies.tools import HEAD, ToolKind

_LETTERS = 4
"""Characters that count as a token here, because the sizes of digests are in characters."""
_PROMPT_TOKENS = 500
_SECTION = 3
"""The section of a file that stays has one character in so many of those a model is shown, at most."""
_ADDED = 0.5
"""The share of a model's digest that may be added to it: errors, or lines mentioned since; the last error apart."""
_TRIES = 4


# --- a file in three parts: one that is shown line by line, and the text before and after it ---
# Laws: the shown part is in one piece: at most a third of the lines, around those with mentioned identifiers, else the
# middle third. Each of its lines is whole, after its number and a hash of it: `12:a3f|text`. The same numbers always
# name the same lines of a text, so its parts can be read again by them. Linear in the text; of a very long one only the
# lines near both ends are searched


@dataclass(frozen=True, slots=True)
class Sections:
    """The parts of a text; `first` and `last` are the numbers of the lines shown, `lines` is how many there are."""

    before: str
    relevant: tuple[str, ...]
    after: str
    first: int
    last: int
    lines: int

    @property
    def numbered(self) -> str:
        return "".join(_numbered(line, number) for number, line in enumerate(self.relevant, self.first))


def hash_of(line: str) -> str:
    """A short hash by which a line is recognized wherever it moves."""
    return sha256(line.rstrip("\r\n").encode("utf-8", "surrogatepass")).hexdigest()[:3]


def sectioned(text: str, mentioned: frozenset[str], most: int) -> Sections | None:
    """The parts of a text, at most `most` characters shown; None where it has too few lines, or too long ones."""
    lines = lines_of(text)
    length = len(lines) // 3
    start = (len(lines) - length) // 2
    if length and (scores := _scores(readable(lines), mentioned)):
        sums = [0, *accumulate(scores[i] for i in range(len(lines)))]
        best = max(range(len(lines) - length + 1), key=lambda at: (sums[at + length] - sums[at], -at))
        scored = [i for i in range(best, best + length) if scores[i]]
        start = min(max(0, (scored[0] + scored[-1] + 1 - length) // 2), len(lines) - length)
    span = range(start, start + length)
    sizes = list(accumulate(len(lines[i]) for i in span))
    span = span[: sum(size <= most for size in sizes)]
    if not span:
        return None
    numbers = _numbers(lines)
    return Sections(
        before="".join(lines[: span.start]),
        relevant=tuple(lines[span.start : span.stop]),
        after="".join(lines[span.stop :]),
        first=numbers[span.start] + 1,
        last=numbers[span.stop],
        lines=numbers[-1],
    )


def numbered(text: str, shown_lines: tuple[int, int], mentioned: frozenset[str], most: int) -> str:
    """The lines of a text from the first to the last of `shown_lines`, in their order with others that hold mentioned
    identifiers, of which there are at most `most` characters; each after its number and its hash."""
    lines = lines_of(text)
    numbers = _numbers(lines)
    span = range(bisect_left(numbers, shown_lines[0] - 1), bisect_right(numbers, shown_lines[1]) - 1)
    # those that mention most, definitions before others, while there is room
    scores = _scores(readable(lines), mentioned)
    worth = {i: score + bool(DEFINES.match(lines[i])) for i, score in scores.items() if i not in span}
    chosen = {*span}
    for i in sorted(worth, key=lambda i: (-worth[i], i)):
        if len(lines[i]) <= most:
            most -= len(lines[i])
            chosen.add(i)
    return "".join(_numbered(lines[i], numbers[i] + 1) for i in sorted(chosen))


def _numbered(line: str, number: int) -> str:
    return f"{number}:{hash_of(line)}|{line}"


def _numbers(lines: Sequence[str]) -> list[int]:
    """How many lines stand before each, and before the end; the middle of a very long text is handled as one."""
    return [0, *accumulate(max(1, line.count("\n")) for line in lines)]


def _scores(lines: Sequence[str], mentioned: frozenset[str]) -> Counter[int]:
    """How often each line holds mentioned identifiers, as words of their own."""
    text, starts = "".join(lines), [0, *accumulate(map(len, lines))]
    scores: Counter[int] = Counter()
    for name in identifiers_present(lines, mentioned):
        for at in places_of(name, text):
            end = at + len(name)
            if not (_in_word(text[max(0, at - 1) : at]) or _in_word(text[end : end + 1])):
                scores[bisect_right(starts, at) - 1] += 1
    return scores


def _in_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def parts(sections: Sections) -> Iterator[tuple[str, str]]:
    if sections.before:
        yield f"Before the relevant section, lines 1 to {sections.first - 1}", sections.before
    yield f"Relevant section, lines {sections.first} to {sections.last}", sections.numbered
    if sections.after:
        yield f"After the relevant section, lines {sections.last + 1} to {sections.lines}", sections.after


# --- the policy ---


@policy
class Digest(ConfiguredPolicy):
    why = "large output: what matters for its kind stays; the rest can be recalled"

    over: Large = parameter("tokens", "larger outputs become digests")
    max_chars: int = parameter("characters", "maximum length of a digest", minimum=100)
    source_chars: int = parameter("characters", "how much of an output the model receives, at most")
    by_model: bool = parameter("yes or no", "whether a model writes digests; a rule does otherwise")
    when: Sequence[Trigger] = parameter("triggers", "when digests begin to be made", default=())

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace | DigestWant]:
        """Digests of outputs that come of age, or for which one by a model came late; wants for those that arrived."""
        aged = self._aged(conversation, context, context.step)
        older = range(conversation.ends[0], aged.start) if context.digests else range(0)
        due = (*aged, *context.protection.in_force.gone)
        for i in large_outputs(conversation, context, (*due, *older), self.over):
            block = context.text_at(conversation, i)
            by_model = context.digests.get(block.text_digest.hex())
            if by_model is None and i not in due:
                continue
            kind, mentions = context.kind(conversation, i), mentioned(conversation, i, context.step)
            if by_model:
                short = with_model(block.text, kind, by_model, self.max_chars, mentions)
            else:
                short = by_rule(block.text, kind, self.max_chars, self.source_chars, mentions)
            back = way_back(context.way_back(conversation, i), context.ref(conversation, i))
            yield Replace(conversation.blocks[i].anchor, f"{short.rstrip()}\n{back}", "digest")
        if not self.by_model or context.digesting is None or context.excess or not context.step:
            return
        if not self.when or any(context.holds(conversation, trigger) for trigger in self.when):
            newest = range(conversation.ends[context.step - 1], conversation.ends[context.step])
            for i in large_outputs(conversation, context, newest, self.over):
                yield self._want(conversation, context, i, context.digesting)

    def due(self, conversation: Conversation, context: Context, step: int) -> Iterator[int]:
        return large_outputs(conversation, context, self._aged(conversation, context, step), self.over)

    def _aged(self, conversation: Conversation, context: Context, step: int) -> range:
        return context.aged(conversation, context.first_cut_age, self.when, step=step)

    def _want(self, conversation: Conversation, context: Context, at: int, prices: Prices) -> DigestWant:
        """A want for a digest of this output, with about what would stand in its place and what it would cost."""
        block, kind = conversation.blocks[at], context.kind(conversation, at)
        source_tokens = block.tokens * min(1.0, self.source_chars / len(block.text))
        dollars = (_PROMPT_TOKENS + source_tokens) * prices.input + self.max_chars / _LETTERS * prices.output
        return DigestWant(
            at=block.anchor,
            text_digest=block.text_digest.hex(),
            kind=kind,
            most=self.max_chars,
            source=self.source_chars,
            tokens=self.max_chars // _LETTERS + (block.tokens // _SECTION if kind == "file" else 0),
            cost=dollars / context.prices.input if context.prices.input else 0.0,
        )

    def _contradictions(self) -> Iterator[Conflict]:
        """Digests that are no shorter than what they are made from, or than what they stand for."""
        most, source = self.max_chars, self.source_chars
        if source < most:
            message = f"{source} characters are too few for a digest of {most}; raise it, or lower `max_chars`"
            yield ("source_chars",), message
        for unit, limit in amounts(self.over).items():  # a text of so many bytes has no more characters
            if unit in ("characters", "bytes") and limit <= most:
                message = f"{most} characters must be less than `over` ({limit} {unit}); lower it, or raise `over`"
                yield ("max_chars",), message


def with_model(text: str, kind: ToolKind, digest: ModelDigest, most: int, mentions: frozenset[str]) -> str:
    """A model's digest of a text, with the lines that the model was told stay, and with the errors that it omitted."""
    room = int(most * _ADDED)
    short = digest.text
    if any(digest.lines):
        short = f"{short}\n{numbered(text, digest.lines, mentions, room)}".rstrip("\n")
    return short if kind == "file" else "\n".join([short, *_errors(text, short, room)])


def section(text: str, kind: ToolKind, source: int, mentions: frozenset[str]) -> Sections | None:
    """A file in parts, for a model that is shown `source` characters of it; None where it has none."""
    return sectioned(text, mentions, source // _SECTION) if kind == "file" else None


def by_rule(text: str, kind: ToolKind, most: int, source: int, mentions: frozenset[str]) -> str:
    """A text made short by what it is, to `most` characters; a file to its section and so many around it."""
    sections = section(text, kind, source, mentions)
    if sections is None:
        return _shortened(text, kind, most, mentions)
    around = len(sections.before) + len(sections.after)
    room_before = most * len(sections.before) // max(1, around)
    before = _shortened(sections.before, kind, room_before, mentions)
    after = _shortened(sections.after, kind, most - room_before, mentions)
    return "\n".join(part.rstrip("\n") for part in (before, sections.numbered, after) if part)


def source_text(text: str, kind: ToolKind, call: str, source: int, sections: Sections | None) -> str:
    """The output for a model, about `source` characters, indented, so that no line can pass for a heading."""
    pieces = list(parts(sections)) if sections else [("Output", text)]
    room = source // len(pieces) if len(text) > source else source
    lines = []
    for heading, piece, most, head in (
        ("Call", call, source // 10, 0.5),
        *((heading, piece, room, HEAD[kind]) for heading, piece in pieces),
    ):
        short = piece if len(piece) <= most else excerpt(piece, most // _LETTERS, head, frozenset(), _tokens)
        if len(short) > most:
            short = cut_inside(piece, most // _LETTERS, head, _tokens)
        lines += [heading, indented(short)]
    return "\n".join(lines)


def _shortened(text: str, kind: ToolKind, most: int, mentions: frozenset[str]) -> str:
    room = most // _LETTERS
    for _ in range(_TRIES if room > 0 else 0):
        short = digested(text, kind, room, mentions, _tokens)
        if len(short) <= most:
            return short
        room -= (len(short) - most) // _LETTERS + 1
    return cut_inside(text, most // _LETTERS, HEAD[kind], _tokens)


def _errors(text: str, digest: str, most: int) -> list[str]:
    """The lines with errors, and the exit status, that are missing from a digest, in the order of the text: the last of
    both, and others, the newest first, up to `most` characters."""
    lines = readable(lines_of(text))
    wrong, status = (matching(lines, pattern) for pattern in (ERROR, STATUS))
    missing = {i: lines[i].strip() for i in (*wrong[-1:], *status[-1:])}
    for i in sorted(set(wrong) - missing.keys(), reverse=True):
        line = lines[i].strip()
        if len(line) < most and line not in digest and line not in missing.values():
            missing[i] = line
            most -= len(line) + 1
    return [line for _, line in sorted(missing.items()) if line not in digest]


def _tokens(text: str) -> int:
    return -(-len(text) // _LETTERS)
