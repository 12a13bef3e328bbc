"""Conversations that their client compacts itself: it asks the model for a summary of its history, and begins a new
history with that.

Laws
  A request that asks for such a summary goes as the client wrote it, because the summary is to be made from all of it;
  only where that would not fit is room made.
  The history after it is the same conversation: where its client names it, by that; elsewhere where it begins with the
  words (not the white space) of an answer that its owner was given to such a request in the same API, last of all where
  several were given it. An edited summary names nothing.
  Which conversation it is stays as it was first found, also where the store was away.
  No words are kept, but a digest, a count and a time, written before the client has all of the summary.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import methodcaller

from msgspec import structs

from proxy.memory import CLIENT_SUMMARIES, Key, StoredText, StoreTrouble
from proxy.memory.cached import CachedStore
from proxy.memory.conversation import ParsedRequest, put_newest
from proxy.requests import PlannedRequest

_CLAUDE = "Your task is to create a detailed summary of "
ASKS = (
    ("CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.", _CLAUDE),  # Claude Code
    (f"{_CLAUDE}the conversation", ""),
    ("You are performing a CONTEXT CHECKPOINT COMPACTION", ""),  # openai/codex, core/templates/compact
    ("Provide a detailed prompt for continuing our conversation above", ""),  # sst/opencode, session/compaction.ts
    ("Create a new anchored summary from the conversation history", ""),
    ("Update the anchored summary below using the conversation history", ""),
    # cline/cline, src/core/prompts/contextManagement.ts
    ('<explicit_instructions type="summarize_task">', "The current conversation is rapidly running out of context"),
    # google-gemini/gemini-cli and QwenLM/qwen-code, packages/core/src/services/chatCompressionService.ts
    ("First, reason in your ", "<state_snapshot>"),
    ("Generate a new <state_snapshot> based on the provided history", ""),
    ("A previous <state_snapshot> exists in the history", ""),
    ("Critically evaluate the <state_snapshot> you just generated", ""),
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
_BYTES, _OWNERS = 2**20, 64
"""Bytes of notes that stay of a tenant, some 4,000 summaries; and owners whose conversation with one beginning does."""


@dataclass(eq=False)
class ClientSummaries:
    store: CachedStore

    async def note(self, planned: PlannedRequest, answer: str, at: float) -> None:
        """The answer to a request for a summary; Claude Code takes over what stands in it as the summary."""
        words = (answer.partition("<summary>")[2].partition("</summary>")[0] or answer).split()
        context, newest = planned.context, planned.previous
        if len(words) >= _FEWEST:
            name = _name(context.client_request.dialect, context.client_request.sender.owner, words)
            texts = [StoredText(name, f"{len(words)} {_digest(words)} {at}", {})]
            put = methodcaller("put_texts", context.key, CLIENT_SUMMARIES, texts, _BYTES)
            with suppress(StoreTrouble):
                await self.store.ask("put_texts", put)
            if newest is not None and not context.client_request.is_dry:
                await self.store.supersede(context.key, replace(newest, anchor=BEFORE_SUMMARY, edits=()))

    async def placed(self, parsed: ParsedRequest, dialect: str, owner: str, text: str) -> ParsedRequest:
        """The request in the conversation that this text in it begins with a summary of, as that was found first; in
        its own where there was none, or the store did not answer."""
        words = text.split()
        continues = self.store.conversations.of(parsed.key).continues
        if owner not in continues:
            name = await self._find(parsed.key, owner, _name(dialect, owner, words), words)
            put_newest(continues, owner, continues.get(owner, name), _OWNERS)
        return structs.replace(parsed, key=Key(parsed.key.tenant, continues[owner]))

    async def _find(self, own: Key, owner: str, name: str, words: Sequence[str]) -> str:
        candidates, ask = [(0.0, own.conversation)], self.store.ask
        with suppress(StoreTrouble):
            if owner in await ask("owners", methodcaller("owners", own)):
                return own.conversation  # it went on as that where the store was away
            finding = methodcaller("conversations_with", own.tenant, CLIENT_SUMMARIES, name)
            for conversation in await ask("find", finding):
                key = Key(own.tenant, conversation)
                texts = await ask("texts", methodcaller("texts", key, CLIENT_SUMMARIES, [name]))
                count, digest, at = texts.get(name, "0 - 0").split()
                if _digest(words[: int(count)]) == digest:
                    candidates.append((float(at), conversation))
            return max(candidates)[1]
        return own.conversation


def _name(dialect: str, owner: str, words: Sequence[str]) -> str:
    """The name of a note: it begins with the owner's, who deletes it so."""
    return f"{owner}.{_digest([dialect, *words[:_FEWEST]])}"


def _digest(words: Sequence[str]) -> str:
    """Clients change the white space of a summary."""
    return sha256(" ".join(words).encode("utf-8", "surrogatepass")).hexdigest()
