"""Summaries on a request's way: what is known of them, what is asked for, and what the reply says about them.

Laws
  Nothing here waits for a summary but where `summary_wait` says so, and no longer than that.
  What became of a summary is always said: in the reply's header, and as an event.
  Only the policy `fail` has a client hear of a stale one as an error.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256

from cachetools import LRUCache

from policies.books import Plan
from policies.context import Memory, Summarizing
from policies.presets import Preset, digesting, summarizing
from proxy.config import Settings
from proxy.histories import Histories
from proxy.journal import Journal
from proxy.kept.originals import owner_of
from proxy.outgoing import Work
from proxy.store import Key
from proxy.upstream import ShapedError
from proxy.writing.orders import Task
from proxy.writing.proven import Proven
from proxy.writing.summaries import Summaries
from proxy.writing.summarizer import Summarizer

Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Entered around a wait for a summary by a client that streams: it is told so meanwhile."""

_TOLD = 1024
"""Events of the same kind that are not told again."""


@dataclass(frozen=True, slots=True)
class Staff:
    """Who writes, makes and remembers summaries and digests, and what names those who pay."""

    settings: Settings
    summarizer: Summarizer
    summaries: Summaries
    histories: Histories
    secret: bytes = field(repr=False)
    clock: Callable[[], float]


class Rolling:
    """Looks after the rolling summaries of conversations."""

    def __init__(self, staff: Staff, journal: Journal, proven: Proven) -> None:
        self._staff = staff
        self._journal = journal
        self._proven = proven
        self._told: LRUCache[tuple[Key, str], bool] = LRUCache(_TOLD)

    def summarizing(self, dialect: str, model: str, preset: Preset, policy: str) -> Summarizing | None:
        """How summaries are made in conversations in this API, with this model; None where the preset wants none, or
        nobody could be asked."""
        writers = self._staff.summarizer.models(dialect, model, preset.writing) if preset.summarizes else ()
        if not writers:
            return None
        making = self._staff.summaries.making(dialect, model, policy, preset.writing)
        prices = self._staff.summarizer.prices(writers[0])
        most = preset.writing.tokens or self._staff.settings.summary_tokens
        return Summarizing(making, prices, most, self._staff.clock())

    def known(self, work: Work, memory: Memory) -> Memory:
        """What is remembered, with the summaries that were made here: the store may not have them yet."""
        made = self._staff.summaries.made(work.key, work.conversation.beginning) if work.preset.summarizes else ()
        together = {each.id: each for each in (*memory.summaries, *made)}
        return replace(memory, summaries=tuple(sorted(together.values(), key=lambda each: each.created_at)))

    async def waited(self, work: Work, plan: Plan, memory: Memory, waiting: Waiting | None) -> Memory | None:
        """What is known after a wait for the summary that the plan wants; None where nobody waits."""
        wait = self._staff.settings.summary_wait / 1000
        if not wait or not self.want(work, plan, memory):
            return None
        async with waiting() if waiting is not None and work.request.streams else nullcontext():
            await self._staff.summaries.wait(work.key, work.conversation.beginning, wait)
        found = await self._staff.histories.summaries(work.key, work.conversation)
        return self.known(work, replace(memory, summaries=found))

    def want(self, work: Work, plan: Plan, memory: Memory) -> bool:
        """Have the summary made that the plan wants, in the background; whether it is on its way."""
        owner = self.payer(work) if plan.wants else ""
        if not owner:
            return False
        if plan.books.stale and self._staff.settings.summary_stale != "regenerate":
            return False
        return self._staff.summaries.start(
            Task(
                key=work.key,
                conversation=work.conversation,
                want=plan.wants[-1],
                model=work.request.model,
                auth=work.incoming.auth,
                owner=owner,
                count=work.setup.count,
                policy=work.policy,
                known=memory.summaries,
                dialect=work.incoming.dialect,
                exceptions=work.preset.exceptions,
                writing=work.preset.writing,
            )
        )

    def payer(self, work: Work) -> str:
        """Who pays for what this request wants; empty where nobody may be asked for it."""
        owner = owner_of(self._staff.secret, work.incoming.credential)
        return owner if work.incoming.mode == "on" and owner in self._proven else ""

    def answered(self, credential: str) -> None:
        """The upstream took this credential."""
        self._proven.add(owner_of(self._staff.secret, credential))

    def check(self, work: Work, plan: Plan) -> None:
        """Raises ShapedError where a summary is stale and the configuration says that this is an error."""
        if (
            work.incoming.mode == "on"
            and plan.books.stale
            and plan.summary is None
            and self._staff.settings.summary_stale == "fail"
        ):
            message = (
                f"The summary of this conversation is stale ({plan.books.stale}) and `summary_stale` is `fail`: start "
                "a new conversation, or have it forgotten (DELETE /narrows/conversations/ID)."
            )
            raise ShapedError(400, message, "stale_summary", "messages")

    def word(self, work: Work, plan: Plan) -> str:
        """What the reply says of summaries; empty where there is nothing to say."""
        if work.incoming.mode != "on":
            return ""
        if plan.books.stale:
            return f"stale:{plan.books.stale}"
        state = self._staff.summaries.state(work.key, work.conversation.beginning) if work.preset.summarizes else ""
        if state == "pending" or (state and (plan.wants or plan.summary is None)):
            return state
        return "adopted" if plan.summary else ""

    def tell(self, work: Work, plan: Plan) -> None:
        """Note what became of summaries with this request, once."""
        if work.incoming.mode != "on":
            return
        origin = plan.summary.origin if plan.summary else None
        if plan.books.stale:
            self.note(work.key, "summary.stale", work.conversation.beginning, reason=plan.books.stale)
        if plan.adopted and origin is not None:
            self.note(work.key, "summary.adopted", origin.id, id=origin.id, generation=origin.generation)

    def note(self, key: Key, name: str, of: str, **details: str | int) -> None:
        """Note what became of a thing, once."""
        said = (key, f"{name} {of} {details.get('reason', '')}")
        if said not in self._told:
            self._told[said] = True
            self._journal.note(key, name, **details)


# a pure function of its arguments, so remembering changes nothing but the time it takes
@lru_cache(maxsize=256)
def policy_of(name: str, preset: Preset) -> str:
    """What the summaries and digests of a preset are kept under: its name and their parameters."""
    said = f"{summarizing(preset.policies)}{digesting(preset.policies)}{preset.exceptions.system or ''}"
    return f"{name}:{sha256(said.encode()).hexdigest()[:8]}"
