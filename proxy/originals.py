"""What references stand for, kept for people: the model is answered from the request in flight.

Laws
  Behind the request: nothing waits for it. What cannot be written is tried once more, then counted and given up.
  A tenant finds what is its own; what is missing, malformed or somebody else's is told in the same words.
  No text is logged.
"""

import asyncio
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.conversation import Conversation
from policies.edits import Edit, Replace
from policies.recall import asked, original
from policies.stubs import refs_named
from proxy.behind import Behind
from proxy.store import Key, Store, StoreTrouble
from proxy.telemetry import Telemetry
from proxy.upstream import ShapedError

_QUEUED, _HELD = 256, 32 * 2**20
"""Requests whose texts may wait, and the characters of these texts; beyond it they are dropped."""
_PORTION = 2**20
"""Characters that are handed to the store at once, but for a longer text."""
_NAMES = 10
"""Conversations that a refusal names."""

_REFERENCE = re.compile(r"[0-9]{6,24}(\+[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Original:
    """What a reference stands for, and a conversation that says so."""

    conversation: str
    text: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The edits of one request whose originals are to be written; `size` is how many characters they hold."""

    key: Key
    owner: str
    conversation: Conversation
    edits: Sequence[Edit]
    size: int


class Originals:
    """Keeps what is hidden, and finds it for a person."""

    def __init__(self, store: Store, telemetry: Telemetry, secret: bytes) -> None:
        self._store = store
        self._secret = secret
        self._telemetry = telemetry
        self._behind = Behind(self._written, telemetry)

    def keep(self, key: Key, credential: str, conversation: Conversation, new: Sequence[Edit]) -> None:
        """Keep what these edits hide for whoever sent it, behind the request. Never raises."""
        edits = [edit for edit in new if named(conversation, edit)]
        if not edits:
            return
        size = sum(len(block.text) for edit in edits for block in conversation.blocks[_place(conversation, edit)])
        held = sum(waiting.size for waiting in self._behind)
        if held and (len(self._behind) >= _QUEUED or held + size > _HELD):
            self._telemetry.metrics.store_trouble("originals_full")
            return
        self._behind.put(_Waiting(key, owner_of(self._secret, credential), conversation, edits, size))

    async def find(self, tenant: str, credential: str, ref: str, conversation: str | None) -> Original:
        """What a reference stands for in what this credential sent, in all its conversations or in the one given.

        Raises ShapedError where there is nothing, or more than one thing, or no store to ask.
        """
        kept = (
            await self._kept(tenant, f"{owner_of(self._secret, credential)}.{ref}", conversation)
            if _REFERENCE.fullmatch(ref)
            else {}
        )
        if not kept:
            raise ShapedError(404, "Nothing is kept for this reference.", "not_found")
        if len(set(kept.values())) > 1:
            raise _ambiguous(sorted(kept))
        name = min(kept)
        return Original(name, kept[name])

    async def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        if lost := await self._behind.close():
            self._telemetry.log.warning("originals_lost", requests=lost)

    async def _kept(self, tenant: str, ref: str, conversation: str | None) -> Mapping[str, str]:
        try:
            return await self._store.original(tenant, ref, conversation)
        except StoreTrouble as error:
            self._telemetry.metrics.store_trouble("original")
            message = "The store is in trouble, so nothing can be looked up; ask again in a moment."
            raise ShapedError(503, message, "store_trouble") from error

    async def _written(self, waiting: _Waiting) -> bool:
        texts = await asyncio.to_thread(lambda: dict(hidden(waiting.conversation, waiting.edits)))
        found = {f"{waiting.owner}.{ref}": text for ref, text in texts.items()}
        try:
            for portion in _portions(found):
                await self._store.keep_originals(waiting.key, portion)
        except StoreTrouble:
            self._telemetry.metrics.store_trouble("originals")
            return False
        return True


def owner_of(secret: bytes, credential: str) -> str:
    """A name for whoever proves itself so: within a tenant nobody sees what another sent."""
    proof = b"originals\0" + credential.encode("utf-8", "surrogateescape")
    return hmac.new(secret, proof, "sha256").hexdigest()[:24]


def named(conversation: Conversation, edit: Edit) -> str:
    """The reference that an edit's text names for what it hides; empty where it names none."""
    refs = [_own(conversation, edit)]
    call = asked(conversation, _place(conversation, edit).start) if isinstance(edit, Replace) else None
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
    """What the hidden is called, whether or not the edit says so."""
    place = _place(conversation, edit)
    if isinstance(edit, Replace):
        return conversation.ref(place.start)
    return conversation.run_ref(place.start, place.stop - 1)


def _place(conversation: Conversation, edit: Edit) -> slice:
    """The blocks that an edit hides."""
    first, last = (edit.at, edit.at) if isinstance(edit, Replace) else (edit.first, edit.last)
    return slice(conversation.index[first], conversation.index[last] + 1)


def _portions(found: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The same in pieces, so that no other writer waits for long."""
    portion: dict[str, str] = {}
    size = 0
    for ref, text in found.items():
        if portion and size + len(text) > _PORTION:
            yield portion
            portion, size = {}, 0
        portion[ref] = text
        size += len(text)
    if portion:
        yield portion


def _ambiguous(names: Sequence[str]) -> ShapedError:
    shown = ", ".join(names[:_NAMES])
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    message = f"Several conversations keep different texts for this reference: {shown}{more}. Add ?conversation=ID."
    return ShapedError(409, message, "ambiguous_reference", "conversation")
