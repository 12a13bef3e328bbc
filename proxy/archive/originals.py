"""What references stand for, kept for people: the model is answered from the request in flight.

Laws
  Stored behind the request, as `TextQueue` does.
  A tenant finds what is its own; what is missing, malformed or somebody else's is refused in the same words.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from policies.model.conversation import Conversation
from policies.model.edits import Edit, Replace
from policies.recall import call_answered_by, original
from policies.text.stubs import refs_named
from proxy.archive.queue import ArchiveServices, TextQueue
from proxy.errors import ApiError
from proxy.identity import owner_of
from proxy.store import ORIGINALS, Key, StoredText, StoreTrouble

_NAMES = 10
"""Conversations that a refusal names."""

_REFERENCE = re.compile(r"[0-9]{6,24}(\+[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Original:
    """What a reference stands for, and a conversation that has it."""

    conversation: str
    text: str


class Originals:
    """Stores what is hidden, and finds it for a person."""

    def __init__(self, services: ArchiveServices) -> None:
        self._services = services
        self.queue = TextQueue(services, "originals", ORIGINALS)

    def keep(self, key: Key, credential: str, conversation: Conversation, new: Sequence[Edit]) -> None:
        """Store what these edits hide, for whoever sent it. Never raises."""
        edits = [edit for edit in new if named(conversation, edit)]
        if not edits:
            return
        size = sum(len(block.text) for edit in edits for block in conversation.blocks[_place(conversation, edit)])
        owner = owner_of(self._services.secret, credential)

        def texts() -> list[StoredText]:
            originals = dict(hidden(conversation, edits))
            return [StoredText(f"{owner}.{ref}", text, {}) for ref, text in originals.items()]

        self.queue.put(key, size, partial(asyncio.to_thread, texts))

    async def find(self, tenant: str, credential: str, ref: str, conversation: str | None) -> Original:
        """What a reference stands for in what this credential sent, in all its conversations or in the one given.

        Raises ApiError where there is nothing, or more than one thing, or no store to ask.
        """
        name = f"{owner_of(self._services.secret, credential)}.{ref}"
        try:
            texts = await self._texts(tenant, name, conversation) if _REFERENCE.fullmatch(ref) else {}
        except StoreTrouble as error:
            self._services.telemetry.metrics.store_trouble("original")
            message = "The store is in trouble, so nothing can be looked up; ask again in a moment."
            raise ApiError(503, message, "store_trouble") from error
        if not texts:
            raise ApiError(404, "Nothing is kept for this reference.", "not_found")
        if len(set(texts.values())) > 1:
            raise _ambiguous(sorted(texts))
        return Original(min(texts), texts[min(texts)])

    async def _texts(self, tenant: str, name: str, conversation: str | None) -> Mapping[str, str]:
        """The text of this name in each conversation that has it, or in the one given."""
        store, conversations = self._services.store, [conversation] if conversation is not None else []
        if conversation is None:
            conversations += await store.conversations_with(tenant, ORIGINALS, name)
        texts = {each: (await store.texts(Key(tenant, each), ORIGINALS, [name])).get(name) for each in conversations}
        return {each: text for each, text in texts.items() if text is not None}


def named(conversation: Conversation, edit: Edit) -> str:
    """The reference that an edit's text names for what it hides; empty where it names none."""
    refs = [_own(conversation, edit)]
    call = call_answered_by(conversation, _place(conversation, edit).start) if isinstance(edit, Replace) else None
    if call is not None:
        refs.append(call.ref)
    named = refs_named(edit.text)
    return next((ref for ref in refs if ref in named), "")


def hidden(conversation: Conversation, edits: Sequence[Edit]) -> Iterator[tuple[str, str]]:
    """Each reference that these edits name, and what it stands for."""
    for edit in edits:
        ref = named(conversation, edit)
        if ref and isinstance(edit, Replace) and ref == _own(conversation, edit):
            yield ref, conversation.blocks[conversation.index[edit.at]].text
        elif ref and (text := original(conversation, ref)) is not None:
            yield ref, text


def _own(conversation: Conversation, edit: Edit) -> str:
    """The reference of what an edit hides, whether or not the edit names it."""
    place = _place(conversation, edit)
    if isinstance(edit, Replace):
        return conversation.ref(place.start)
    return conversation.run_ref(place.start, place.stop - 1)


def _place(conversation: Conversation, edit: Edit) -> slice:
    """The blocks that an edit hides."""
    first, last = (edit.at, edit.at) if isinstance(edit, Replace) else (edit.first, edit.last)
    return slice(conversation.index[first], conversation.index[last] + 1)


def _ambiguous(names: Sequence[str]) -> ApiError:
    first = ", ".join(names[:_NAMES])
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    message = f"Several conversations keep different texts for this reference: {first}{more}. Add ?conversation=ID."
    return ApiError(409, message, "ambiguous_reference", "conversation")
