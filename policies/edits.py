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
class Fold:
    """One message in the place of a run of whole messages, from the block `first` to the block `last`.

    The run never parts a call from its results.
    """

    first: str
    last: str
    text: str
    by: str


Edit = Replace | Fold
