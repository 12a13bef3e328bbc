"""Common to all policies: a frozen value, called once for each step of a history."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, dataclass_transform

from policies.context import Context, DigestWant, Want
from policies.model.conversation import Conversation
from policies.model.edits import Edit
from policies.model.parameters import Large, Window, amounts, is_large, parameter, parameters_of
from policies.tools import OURS

Conflict = tuple[Sequence[str | int], str]
"""The path of a parameter that cannot work beside the others, and what to change."""

P = TypeVar("P", bound="ConfiguredPolicy")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(parameter,))
def policy(kind: type[P]) -> type[P]:
    """Make a class a frozen dataclass whose fields are given by name."""
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredPolicy(ABC):
    """A policy with its parameters, which are its fields (see policies.model.parameters)."""

    why: ClassVar[str]
    """Why a text was shortened, in words for `narrows explain`."""

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def summary(self) -> str:
        """The first sentence of its module."""
        return " ".join((sys.modules[type(self).__module__].__doc__ or "").partition("\n\n")[0].split())

    @abstractmethod
    def __call__(self, conversation: Conversation, context: Context) -> Iterable[Edit | Want | DigestWant]:
        """The edits offered at the step of `context`, and wants of summaries and digests; the planner decides."""

    def due(self, conversation: Conversation, context: Context, step: int) -> Iterator[int]:
        """The new blocks that get their first cut with a step: that of the context, where `__call__` makes it, or the
        next one, so that our cache marks stand before them."""
        return iter(())

    def read_ahead(self, conversation: Conversation) -> None:  # noqa: B027 - most have nothing to read
        """Read what later steps may ask of all of the history, so that it is remembered: called where nobody waits."""

    def conflicts(self) -> Iterator[Conflict]:
        """Parameters that can never work, alone or together; only amounts of the same unit are compared. A trigger
        cannot that comes true while the window `keep` still holds all there is."""
        for each in parameters_of(self):
            value = getattr(self, each.name)
            if isinstance(value, Window) and value.share >= 1:
                whole = "it covers the whole window of the model, so nothing would ever be edited; give a lower share"
                yield (each.name,), whole
        yield from self._contradictions()
        inside = amounts(getattr(self, "keep", None) or 0)
        for name in ("when", "when_after"):
            for at, trigger in enumerate(getattr(self, name, ())):
                needed = amounts(trigger)
                if needed and all(count <= inside.get(unit, -1) for unit, count in needed.items()):
                    limits = " and ".join(f"{inside[unit]:g} {unit}" for unit in needed)
                    message = (
                        f"`keep` covers {limits}, which is all there is when this holds; raise it, or lower `keep`"
                    )
                    yield (name, at), message

    def _contradictions(self) -> Iterable[Conflict]:
        return ()


def large_outputs(conversation: Conversation, context: Context, blocks: Iterable[int], over: Large) -> Iterator[int]:
    """The outputs of tools among these blocks that are larger than `over` and not to be left as they are."""
    least = over if isinstance(over, int) else -1  # asked for each block of a history some ten times
    for i in blocks:
        block = context.text_at(conversation, i)
        if block.tokens <= least or block.answers is None:
            continue
        if context.is_output(block) and block.tool not in OURS and is_large(block.text, block.tokens, over):
            context.pause(1)
            if not context.protection.keeps(conversation, i):
                yield i


def unreferenced(context: Context, aged: range) -> Sequence[int]:
    """The blocks that leave a window, and those that they point to, if nothing inside the window points to them."""
    if not context.used_by:  # nearly always
        return aged
    blocks = {*aged, *(used for at in aged for used in context.uses.get(at, ()))}
    return sorted(at for at in blocks if context.used_by.get(at, at) < aged.stop)


def turn_runs(
    conversation: Conversation, context: Context, turns: range, without: Container[int]
) -> Iterator[list[list[int]]]:
    """Turns in runs with nothing between them; each turn as the indices of its blocks, with those of the turns in which
    its calls are answered. The blocks of `without` are in no run, and no turn of which people want anything left as it
    is. What people wrote and system text stand between the turns and stay."""
    run: list[list[int]] = []
    for turn in turns:
        if context.protection.keeps_turn(conversation, turn):
            continue
        around = range(conversation.ends[turn], conversation.ends[turn + 1])
        blocks = [i for i in around if conversation.blocks[i].turn == turn and i not in without]
        if blocks and blocks[-1] - blocks[0] >= len(blocks):  # something stands between its results: it stays
            continue
        for i in blocks:
            if run and i != run[-1][-1] + 1:
                yield _closed(conversation, run)
                run = []
            if run and (i in conversation.no_cut_before or conversation.blocks[run[-1][-1]].turn == turn):
                run[-1].append(i)
            else:
                run.append([i])
    yield _closed(conversation, run)


def _closed(conversation: Conversation, run: list[list[int]]) -> list[list[int]]:
    """The run without the turns at whose edge a call is open: these cannot go alone."""
    return [turn for turn in run if conversation.no_cut_before.isdisjoint((turn[0], turn[-1] + 1))]
