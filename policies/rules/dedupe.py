"""Outputs that repeat an earlier one word for word are removed, and so are outputs that a newer one made outdated.

A repeated output becomes a pointer to the copy that is still in this request; when that copy goes, the pointer is
rewritten in the same checkpoint. An output that the same call with all its arguments gave again needs no keep window,
and neither does a file that a later call rewrote as a whole.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from policies.context import Context
from policies.model.conversation import Block, Conversation
from policies.model.edits import Replace
from policies.model.parameters import Large, is_large, parameter
from policies.rules.base import ConfiguredPolicy, large_outputs, policy
from policies.text.excerpt import ERROR
from policies.text.stubs import hidden_output, outdated_file, repeated_output, superseded_output
from policies.tools import FILES, OURS, known_by, path_of, rewrites

_REFUSED = re.compile(
    r"reject|denied|refus|cancel|abort|interrupt|declin|cannot|can't|unable|not been|not found|not allowed"
    r"|does not|doesn't|did not|didn't|must|first",
    re.I,
)
"""Words in the answer to a write that did not happen. A false match only means that an outdated reading stays."""
_ANSWER_CHARACTERS = 2_000
_MOST_COPIES = 8
_LOOK_BACK = 400
"""Blocks that are searched for outdated readings: what was read earlier has left every window long ago."""


@policy
class Dedupe(ConfiguredPolicy):
    why = "the same output stands elsewhere in the request"

    over: Large = parameter("tokens", "larger outputs are compared with the rest of the request")
    outdated: bool = parameter("yes or no", "whether outputs that a newer one made outdated are removed", default=True)

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        """Pointers for outputs that stand above, and for what those of the step before made old."""
        for i in context.aged(conversation, 0):
            if self._is_large_output(conversation.blocks[i]):
                yield from _repeated(conversation, context, i)
        for i in context.aged(conversation, 1) if self.outdated else ():
            block = conversation.blocks[i]
            if block.kind == "call":
                context.pause(1)
                yield from _outdated(conversation, context, i, self.over)
            if block.answers is None or not self._is_large_output(block):
                continue
            same_call = conversation.outputs_by_call[block.tool, conversation.blocks[block.answers].text.strip()]
            old = next(large_outputs(conversation, context, _before(i, same_call), self.over), -1)
            if old >= 0 and conversation.blocks[old].text != block.text and old not in context.used_by:
                text = superseded_output(block.tool, context.ref(conversation, old))
                yield Replace(conversation.blocks[old].anchor, text, "dedupe")

    def _is_large_output(self, block: Block) -> bool:
        # in a text protocol only exact duplicates go
        return block.answers is not None and block.tool not in OURS and is_large(block.text, block.tokens, self.over)


def _repeated(conversation: Conversation, context: Context, at: int) -> Iterator[Replace]:
    copies = islice(_before(at, conversation.outputs_by_text[conversation.blocks[at].text]), _MOST_COPIES)
    whole = (copy for copy in copies if copy not in context.folded)  # or with references to lines above
    whole = (c for c in whole if (edit := context.edits.get(c)) is None or (edit.lossless and not edit.needs))
    older = next((conversation.blocks[copy] for copy in whole), None)
    if older is None:
        return
    call = conversation.blocks[older.answers].text if older.answers is not None else ""
    words = known_by(older.tool, call, 60) if older.kind == "result" else ""
    hidden = hidden_output(context.way_back(conversation, at), context.ref(conversation, at))
    yield Replace(
        conversation.blocks[at].anchor,
        repeated_output(older.tool, words),
        "dedupe",
        needs=older.anchor,
        otherwise=hidden,
        uses=(older.anchor,),
        lossless=True,
    )


def _outdated(conversation: Conversation, context: Context, at: int, over: Large) -> Iterator[Replace]:
    """Stubs for the results that show a file as it was before this call rewrote it."""
    call = conversation.blocks[at]
    if not rewrites(call.tool, call.text) or not (path := path_of(call.tool, call.text)):
        return
    answers = [conversation.blocks[i].text[:_ANSWER_CHARACTERS] for i in conversation.results.get(at, ())]
    if not answers or any(ERROR.search(text) or _REFUSED.search(text) for text in answers):
        return
    for i in (i for i in range(max(0, at - _LOOK_BACK), at) if i not in context.used_by):
        older = conversation.blocks[i]
        reading = conversation.blocks[older.answers] if older.answers is not None else None
        if reading is None or not is_large(older.text, older.tokens, over) or not context.is_output(older):
            continue
        if path_of(reading.tool, reading.text) == path and context.kind(conversation, i) in FILES:
            yield Replace(older.anchor, outdated_file(context.ref(conversation, i)), "dedupe")


def _before(at: int, places: Sequence[int]) -> Iterator[int]:
    return (places[n] for n in range(bisect_left(places, at) - 1, -1, -1))
