"""Large outputs become digests one step after their birth: a cheap model's where there is one by then, else by rule.

Laws
  A digest by a model is wanted at birth, when nothing stands for the output yet, and only where it will pay.
  Errors stay word for word: those that a model leaves out are added, the last one always.
  Of a file one section stays as it is (policies.text.sections), beside what is said of the parts before and after it:
  that one which the model was told of, so that no line is left out by both; by rule what was mentioned since decides.
  Every digest ends with the way back; by rule it has at most the characters it may have.
"""

from collections.abc import Iterator, Sequence

from policies.context import Context, DigestWant
from policies.digests import digested
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.identifiers import mentioned
from policies.model.memory import ModelDigest
from policies.model.windows import Large, Trigger, is_large
from policies.money.prices import Prices
from policies.text.excerpt import ERROR, STATUS, cut_inside, excerpt, lines_of, matching, readable
from policies.text.sections import Sections, numbered, parts, sectioned
from policies.text.stubs import way_back
from policies.text.transcript import indented
from policies.tools import HEAD, RECALL, ToolKind

_LETTERS = 4
"""Characters that count as a token here: the sizes of digests are said in characters."""
_ASKING = 500
"""Tokens of the prompt around an output."""
_SECTION = 3
"""The section of a file that stays has one character in so many of those a model is shown, at most."""
_ADDED = 0.5
"""What may be added to a model's digest of errors, or of lines that were mentioned since, as a share of its length; the
last error comes on top."""
_TRIES = 4


def digest(
    conversation: Conversation,
    context: Context,
    *,
    over: Large,
    most: int,
    source: int,
    by_model: bool,
    when: Sequence[Trigger] = (),
) -> Iterator[Replace | DigestWant]:
    """Outputs larger than `over` become digests of `most` characters. With `by_model` one is asked first, which is
    shown `source` characters at most. With triggers, all of that from one on."""
    aged = context.aged(conversation, context.first_cut_age, when)
    for i in _outputs(conversation, context, aged, over):
        yield _replaced(conversation, context, i, most, source)
    for i in _outputs(conversation, context, range(conversation.ends[0], aged.start), over) if context.digests else ():
        if conversation.blocks[i].text_digest.hex() in context.digests:  # it came late
            yield _replaced(conversation, context, i, most, source)
    if not by_model or context.digesting is None or context.excess or not context.step:
        return
    if not when or any(context.holds(conversation, trigger) for trigger in when):
        newest = range(conversation.ends[context.step - 1], conversation.ends[context.step])
        for i in _outputs(conversation, context, newest, over):
            yield _want(conversation, context, i, most, source, context.digesting)


def _outputs(conversation: Conversation, context: Context, blocks: range, over: Large) -> Iterator[int]:
    """The large outputs among these blocks."""
    for i in blocks:
        block = conversation.blocks[i]
        if context.is_output(block) and block.tool != RECALL and is_large(block.text, block.tokens, over):
            yield i


def _want(conversation: Conversation, context: Context, at: int, most: int, source: int, prices: Prices) -> DigestWant:
    """A digest of this output would help, and costs so much."""
    block, kind = conversation.blocks[at], context.kind(conversation, at)
    shown = block.tokens * min(1.0, source / len(block.text))
    dollars = (_ASKING + shown) * prices.input + most / _LETTERS * prices.output
    cost = dollars / context.prices.input if context.prices.input else 0.0
    tokens = most // _LETTERS + (block.tokens // _SECTION if kind == "file" else 0)
    return DigestWant(
        at=block.anchor,
        text_digest=block.text_digest.hex(),
        kind=kind,
        most=most,
        source=source,
        tokens=tokens,
        cost=cost,
    )


def _replaced(conversation: Conversation, context: Context, at: int, most: int, source: int) -> Replace:
    """What stands for an output now."""
    block, kind = conversation.blocks[at], context.kind(conversation, at)
    said = mentioned(conversation, at, context.step)
    made = context.digests.get(block.text_digest.hex())
    short = with_model(block.text, kind, made, most, said) if made else by_rule(block.text, kind, most, source, said)
    back = way_back(kind, context.ref(conversation, at))
    return Replace(block.anchor, f"{short.rstrip()}\n{back}", "digest")


def with_model(text: str, kind: ToolKind, made: ModelDigest, most: int, said: frozenset[str]) -> str:
    """What a model `made` of a text, with the lines that it was told stay, and with what must not be missing."""
    room = int(most * _ADDED)
    short = f"{made.text}\n{numbered(text, made.lines, said, room)}".rstrip("\n") if any(made.lines) else made.text
    return short if kind == "file" else "\n".join([short, *_errors(text, short, room)])


def section(text: str, kind: ToolKind, source: int, said: frozenset[str]) -> Sections | None:
    """A file in parts, for a model that is shown `source` characters of it; None where it has none."""
    return sectioned(text, said, source // _SECTION) if kind == "file" else None


def by_rule(text: str, kind: ToolKind, most: int, source: int, said: frozenset[str]) -> str:
    """A text made short by what it is, to `most` characters; a file to its section and so many around it."""
    sections = section(text, kind, source, said)
    if sections is None:
        return _shortened(text, kind, most, said)
    around = len(sections.before) + len(sections.after)
    before = most * len(sections.before) // max(1, around)
    said_before = _shortened(sections.before, kind, before, said)
    said_after = _shortened(sections.after, kind, most - before, said)
    return "\n".join(part.rstrip("\n") for part in (said_before, sections.numbered, said_after) if part)


def told(text: str, kind: ToolKind, call: str, source: int, sections: Sections | None) -> str:
    """What a model is shown of an output, in at most about `source` characters: no line of it can pass for a heading,
    because all are indented."""
    pieces = list(parts(sections)) if sections else [("Output", text)]
    room = source // len(pieces)
    lines = ["Call", indented(_cut(call, source // 10, 0.5))]
    for heading, piece in pieces:
        lines += [heading, indented(_cut(piece, room if len(text) > source else source, HEAD[kind]))]
    return "\n".join(lines)


def _cut(text: str, most: int, head: float) -> str:
    if len(text) <= most:
        return text
    short = excerpt(text, most // _LETTERS, head, frozenset(), _tokens)
    return short if len(short) <= most else cut_inside(text, most // _LETTERS, head, _tokens)


def _shortened(text: str, kind: ToolKind, most: int, said: frozenset[str]) -> str:
    """A text made short by what it is, to at most so many characters."""
    room = most // _LETTERS
    for _ in range(_TRIES if room > 0 else 0):
        short = digested(text, kind, room, said, _tokens)
        if len(short) <= most:
            return short
        room -= (len(short) - most) // _LETTERS + 1
    return cut_inside(text, most // _LETTERS, HEAD[kind], _tokens)


def _errors(text: str, made: str, most: int) -> list[str]:
    """The lines with errors, and the exit status, that a digest does not say, in the order of the text: the last of
    both, and others, the newest first, up to `most` characters."""
    lines = readable(lines_of(text))
    wrong, status = (matching(lines, pattern) for pattern in (ERROR, STATUS))
    kept = {i: lines[i].strip() for i in (*wrong[-1:], *status[-1:])}
    for i in sorted(set(wrong) - kept.keys(), reverse=True):
        line = lines[i].strip()
        if len(line) < most and line not in made and line not in kept.values():
            kept[i] = line
            most -= len(line) + 1
    return [line for _, line in sorted(kept.items()) if line not in made]


def _tokens(text: str) -> int:
    return -(-len(text) // _LETTERS)
