"""Edits of a conversation, as data.

Laws: an edit names its blocks by anchor, so it can only apply to the same text after the same history; its own text
is derived from content alone, so it is the same in every process and at any time.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replace:
    """Another text for one block. For a call the text is the whole of its arguments, with the same keys and types.
    Where the text speaks of another block, `needs` is that block's anchor; once that block no longer stands whole,
    `otherwise` is the text. `uses` are the anchors of the blocks whose lines the text points to and which have to stand
    when it is made. `lossless`: nothing goes out of sight, so it may be made before the model has seen the block."""

    at: str
    text: str
    by: str
    needs: str = ""
    otherwise: str = ""
    uses: tuple[str, ...] = ()
    lossless: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """The summary that a fold's text is taken from: its `id`, and what it was made with. `at` is in seconds since 1970;
    `cost` is in input tokens of the request's model; `last` is the anchor of the last block that the summary covers."""

    id: str
    model: str
    policy: str
    prompt: str
    at: float
    last: str
    generation: int = 1
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Fold:
    """A text in the place of a run of blocks, from `first` to `last`; policies.text.layout says which messages it
    becomes. Where a message holds tool results and a person's words, only its part of the run is removed. The run never
    separates a call from its results. A summary may replace several runs, between messages that stay: the first fold
    has its text, and all have its `origin`. The last `words` characters of the text repeat what people wrote: they
    stand in a user's message. With `system` the rest is system text, in APIs whose history may hold such. With a `ref`,
    that of the run, it is what the recall tool answers to a call with this reference; without, the model's own."""

    first: str
    last: str
    text: str
    by: str
    origin: Origin | None = None
    system: bool = False
    words: int = 0
    ref: str = ""


@dataclass(frozen=True, slots=True)
class RecallRound:
    """One round of a reply in which the model called the recall tool: the calls, without their answers. `text` is how
    many characters of the reply's text belong to this round. `calls` are the calls as the model made them, each as
    JSON; `places` is the position of each among all calls of its message, empty where there were no others. `fields` is
    what else the client received of the round, as JSON of its dialect ("" for nothing). `last`: the answer tells the
    model that no further recall follows."""

    text: int
    calls: tuple[str, ...]
    places: tuple[int, ...] = ()
    fields: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """The recall exchange behind one reply, put back on later requests: the prompt then begins as it was sent, and the
    model keeps what it fetched. `after` is the anchor of the last block that the client had sent, `reply` the digest of
    the reply that it received (text and call ids). Answers are not stored: they follow from the history and the calls.
    `dialect` is the API whose JSON the rounds are in."""

    after: str
    reply: str
    rounds: tuple[RecallRound, ...]
    dialect: str


Edit = Replace | Fold
"""An offer of a policy. An Insert is put back before the policies run."""
