"""Edits that speak of another block: which of them a step's changes concern.

Law: what a step costs here grows with what it changes, and not with how many such edits there are.
"""

from collections.abc import Iterable, Set

from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.planning.state import PlanState


class Pointers:
    """The edits whose text says that another block stands elsewhere in the request."""

    def __init__(self, conversation: Conversation, state: PlanState) -> None:
        self._index = conversation.index
        self._state = state
        self._speaking: dict[int, list[int]] = {}
        """The blocks whose edits speak, or spoke, of each block."""
        for at in state.pointers:
            self._enter(at, state.edits[at])

    def change(self, at: int, edit: Replace) -> None:
        """Enter the new edit of a block."""
        if edit.needs:
            self._state.pointers.add(at)
            self._enter(at, edit)
        else:
            self._state.pointers.discard(at)

    def _enter(self, at: int, edit: Replace) -> None:
        if (needed := self._index.get(edit.needs)) is not None:
            self._speaking.setdefault(needed, []).append(at)

    def concerned(self, changed: Iterable[int]) -> Set[int]:
        """Those among the changed blocks, and those that lead to one of them."""
        pending, reached = [*changed], set[int]()
        while pending:
            at = pending.pop()
            if at not in reached:
                reached.add(at)
                pending += self._speaking.get(at, ())
        return reached & self._state.pointers

    def shows(self, at: int) -> bool:
        """Whether all of a block's text can be read in the request: there, or in the blocks that its lines point to."""
        pending, reached = [at], set[int]()
        while pending:
            block = pending.pop()
            if block in self._state.folded:
                return False
            edit = self._state.edits.get(block)
            if edit and not edit.lossless:
                return False
            if edit and block not in reached:
                reached.add(block)
                pending += (self._index[anchor] for anchor in edit.uses if anchor in self._index)
        return True

    def stands(self, anchor: str) -> bool:
        """Whether a block's text can still be read in the request: there, or where a pointer in its place leads."""
        while anchor:
            at = self._index.get(anchor)
            if at is None or at in self._state.folded:
                return False
            edit = self._state.edits.get(at)
            if edit is None or (edit.lossless and not edit.needs):
                return True
            anchor = edit.needs  # always further up, so this ends
        return False
