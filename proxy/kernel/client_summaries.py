"""Conversations that their client compacts itself: it asks the model for a summary of its history, and begins a new
history with that.

Laws
  A request that asks for such a summary goes as the client wrote it, because the summary is to be made from all of it;
  only where that would not fit is room made.
  The history after it is the same conversation: where its client names it, by that; elsewhere where it begins with the
  words (not the white space) of an answer that its owner was given to such a request in the same API, last of all where
  several were given it. An edited summary names nothing.
  Which conversation it is stays as it was first found, also where the store was away.
  Digests alone are kept, with the conversation before, and written before the client has all of the summary.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import methodcaller

from policies.model.memory import StepRecord
from proxy.memory import CLIENT_SUMMARIES, Key, StoredText, StoreTrouble
from proxy.memory.cached import CachedStore
from proxy.memory.conversation import put_newest

_CLAUDE = "Your task is to create a detailed summary of "
_CODEX = "You are performing a CONTEXT CHECKPOINT COMPACTION"
_SNAPSHOT = "<state_snapshot>"
ASKS = (
    ("CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.", _CLAUDE),  # Claude Code
    (f"{_CLAUDE}the conversation", ""),
    (_CODEX, ""),  # openai/codex, core/templates/compact/prompt.md
    ("Provide a detailed prompt for continuing our conversation above", ""),  # sst/opencode, src/session/compaction.ts
    ("Create a new anchored summary from the conversation history", ""),
    ("Update the anchored summary below using the conversation history", ""),
    # cline/cline, src/core/prompts/contextManagement.ts
    ('<explicit_instructions type="summarize_task">', "The current conversation is rapidly running out of context"),
    # google-gemini/gemini-cli and QwenLM/qwen-code, packages/core/src/services/chatCompressionService.ts
    ("First, reason in your ", _SNAPSHOT),
    (f"Generate a new {_SNAPSHOT} based on the provided history", ""),
    (f"A previous {_SNAPSHOT} exists in the history", ""),
    (f"Critically evaluate the {_SNAPSHOT} you just generated", ""),
)
"""How the newest message begins, and what follows near that, where a client asks for a summary."""
TRIGGER = '"compaction_trigger"'
"""The item by which Codex asks the provider for one."""
WITHIN = 1_000
"""Characters at the beginning of a message or item."""
TAKES_OVER = (
    ("This session is being continued from a previous conversation", "Summary:"),  # Claude Code
    ("Another language model started to solve this problem", "with your own analysis:"),  # Codex
)
"""How the message with a summary begins, and the end of what stands before that."""
BEFORE_SUMMARY = "before a summary"
"""The anchor of the last step before one: the lifetime of its marks is that of the history behind."""
_FEWEST = 40
"""Words of a summary by which it is looked for. One with fewer could be another's by chance."""


_BYTES = 2**20
"""Bytes of notes that stay of a tenant: those of about 4,000 summaries."""
_OWNERS = 64
"""Owners of one beginning whose conversation is remembered."""

Asker = tuple[str, str]
"""An API, and the owner that asks there."""


@dataclass(eq=False)
class ClientSummaries:
    store: CachedStore

    async def note(self, key: Key, asker: Asker, answer: str, at: float, newest: StepRecord | None) -> None:
        """The answer to a request for a summary; Claude Code takes over what stands in it as the summary. `newest`: the
        last step before it."""
        words = (answer.partition("<summary>")[2].partition("</summary>")[0] or answer).split()
        if len(words) >= _FEWEST:
            with suppress(StoreTrouble):
                text = StoredText(_name(asker, words), f"{len(words)} {_digest(words)} {at}", {})
                await self.store.ask("put_texts", methodcaller("put_texts", key, CLIENT_SUMMARIES, [text], _BYTES))
                if newest is not None:
                    record = replace(newest, anchor=BEFORE_SUMMARY, edits=())
                    await self.store.ask("claim", methodcaller("claim", key, record, supersedes=True))

    async def continued(self, own: Key, asker: Asker, text: str) -> Key:
        """The conversation that this text begins with a summary of, as it was found first; `own` where there was none,
        or the store did not answer."""
        continues, owner = self.store.conversations.of(own).continues, asker[1]
        if owner not in continues:
            found = await self._find(own, asker, text.split())
            put_newest(continues, owner, continues.get(owner, found), _OWNERS)
        return Key(own.tenant, continues[owner])

    async def _find(self, own: Key, asker: Asker, words: Sequence[str]) -> str:
        name, found, ask = _name(asker, words), [(0.0, own.conversation)], self.store.ask
        with suppress(StoreTrouble):
            if asker[1] in await ask("owners", methodcaller("owners", own)):
                return own.conversation  # it went on as that where the store was away
            finding = methodcaller("conversations_with", own.tenant, CLIENT_SUMMARIES, name)
            for conversation in await ask("find", finding):
                before = Key(own.tenant, conversation)
                texts = await ask("texts", methodcaller("texts", before, CLIENT_SUMMARIES, [name]))
                count, digest, at = texts.get(name, "0 - 0").split()
                if _digest(words[: int(count)]) == digest:
                    found.append((float(at), conversation))
            return max(found)[1]
        return own.conversation


def _name(asker: Asker, words: Sequence[str]) -> str:
    """The name of a note: it begins with the owner's, who deletes it so."""
    return f"{asker[1]}.{_digest([asker[0], *words[:_FEWEST]])}"


def _digest(words: Sequence[str]) -> str:
    """Clients change the white space of a summary."""
    return sha256(" ".join(words).encode("utf-8", "surrogatepass")).hexdigest()
