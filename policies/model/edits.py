"""What may be done to a conversation, as data.

Laws: an edit names what it touches by anchor, so it can only apply where the same thing was said after the same
history; its text is derived from content alone, so it is the same in every process and for ever.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replace:
    """Another text for one block. For a call the text is the whole of its arguments, with the same keys and types.

    Where the text speaks of another block, `needs` is that block's anchor; once that block no longer stands whole,
    `otherwise` is the text.
    """

    at: str
    text: str
    by: str
    needs: str = ""
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the text of a fold comes from that is not derived from the history: the summary of this `id`, and what it
    was made with. `at` is when, in seconds since 1970; `cost` what making it cost, in input tokens of the model at
    hand; `last` the anchor of the last block that the whole summary covers."""

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
    """One message in the place of a run of blocks, from `first` to `last`. Where a message holds what a tool returned
    and a person's words, only its part of the run goes.

    The run never parts a call from its results. A summary may stand for several runs, between messages that stay: the
    first fold has its text, and all have its `origin`. As `system` the message is system text, in APIs whose history
    can hold such.
    """

    first: str
    last: str
    text: str
    by: str
    origin: Origin | None = None
    system: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """One round of a reply in which the model called the recall tool: the calls, not what they were answered.

    `text` is how many characters of the reply's text were said in this round. `calls` are the calls as the model made
    them, each as JSON; `places` where each stood among all calls of its message, empty where there were no others.
    `fields` is what else the client got of the round, as its dialect keeps it in JSON ("" for nothing). `last`: the
    answer says that it is.
    """

    text: int
    calls: tuple[str, ...]
    places: tuple[int, ...] = ()
    fields: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """The recall exchange behind one reply, put back on later requests: the prompt then begins as it was sent, and the
    model keeps what it fetched.

    `after` is the anchor of the last block that the client had sent, `reply` the digest of what it got for it (text and
    call ids). The answers are not kept: they follow from the history and the calls. `dialect` is the API in whose words
    the rounds are kept.
    """

    after: str
    reply: str
    rounds: tuple[Exchange, ...]
    dialect: str = "openai_chat"


Edit = Replace | Fold
"""What a policy may offer. An Insert is none: it stands before any policy looks."""
