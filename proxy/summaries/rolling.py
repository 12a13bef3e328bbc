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

from policies.context import Memory, Summarizing
from policies.planning.state import Plan
from policies.presets import Preset, digesting, summarizing
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.identity import VerifiedCredentials, owner_of
from proxy.requests import RequestContext
from proxy.store import Key
from proxy.store.audit_log import AuditLog
from proxy.store.cached import CachedStore
from proxy.summaries.jobs import Task
from proxy.summaries.maker import Summaries
from proxy.summaries.summarizer import Summarizer

Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Entered around a wait for a summary by a client that streams: it is told so meanwhile."""

_TOLD = 1024
"""Events of the same kind that are not told again."""


@dataclass(frozen=True, slots=True)
class SummaryServices:
    """Who writes, makes and remembers summaries and digests, and what names those who pay."""

    settings: Settings
    summarizer: Summarizer
    summaries: Summaries
    cached_store: CachedStore
    secret: bytes = field(repr=False)
    clock: Callable[[], float]


class RollingSummaries:
    """Looks after the rolling summaries of conversations."""

    def __init__(self, staff: SummaryServices, audit_log: AuditLog, proven: VerifiedCredentials) -> None:
        self._staff = staff
        self._audit_log = audit_log
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

    def known(self, work: RequestContext, memory: Memory) -> Memory:
        """What is remembered, with the summaries that were made here: the store may not have them yet."""
        made = self._staff.summaries.made(work.key, work.conversation.beginning) if work.preset.summarizes else ()
        together = {each.id: each for each in (*memory.summaries, *made)}
        return replace(memory, summaries=tuple(sorted(together.values(), key=lambda each: each.created_at)))

    async def waited(self, work: RequestContext, plan: Plan, memory: Memory, waiting: Waiting | None) -> Memory | None:
        """What is known after a wait for the summary that the plan wants; None where nobody waits."""
        wait = self._staff.settings.summary_wait / 1000
        if not wait or not self.want(work, plan, memory):
            return None
        async with waiting() if waiting is not None and work.request.streams else nullcontext():
            await self._staff.summaries.wait(work.key, work.conversation.beginning, wait)
        found = await self._staff.cached_store.summaries(work.key, work.conversation)
        return self.known(work, replace(memory, summaries=found))

    def want(self, work: RequestContext, plan: Plan, memory: Memory) -> bool:
        """Have the summary made that the plan wants, in the background; whether it is on its way."""
        owner = self.payer(work) if plan.wants else ""
        if not owner:
            return False
        if plan.plan_state.stale and self._staff.settings.summary_stale != "regenerate":
            return False
        return self._staff.summaries.start(
            Task(
                key=work.key,
                conversation=work.conversation,
                want=plan.wants[-1],
                model=work.request.model,
                auth=work.client_request.auth,
                owner=owner,
                count=work.setup.count,
                policy=work.policy,
                known=memory.summaries,
                dialect=work.client_request.dialect,
                exceptions=work.preset.exceptions,
                writing=work.preset.writing,
            )
        )

    def payer(self, work: RequestContext) -> str:
        """Who pays for what this request wants; empty where nobody may be asked for it."""
        owner = owner_of(self._staff.secret, work.client_request.credential)
        return owner if work.client_request.mode == "on" and owner in self._proven else ""

    def answered(self, credential: str) -> None:
        """The upstream took this credential."""
        self._proven.add(owner_of(self._staff.secret, credential))

    def check(self, work: RequestContext, plan: Plan) -> None:
        """Raises ApiError where a summary is stale and the configuration says that this is an error."""
        if (
            work.client_request.mode == "on"
            and plan.plan_state.stale
            and plan.summary is None
            and self._staff.settings.summary_stale == "fail"
        ):
            message = (
                f"The summary of this conversation is stale ({plan.plan_state.stale}) and `summary_stale` is `fail`: "
                "start a new conversation, or have it forgotten (DELETE /narrows/conversations/ID)."
            )
            raise ApiError(400, message, "stale_summary", "messages")

    def word(self, work: RequestContext, plan: Plan) -> str:
        """What the reply says of summaries; empty where there is nothing to say."""
        if work.client_request.mode != "on":
            return ""
        if plan.plan_state.stale:
            return f"stale:{plan.plan_state.stale}"
        state = self._staff.summaries.state(work.key, work.conversation.beginning) if work.preset.summarizes else ""
        if state == "pending" or (state and (plan.wants or plan.summary is None)):
            return state
        return "adopted" if plan.summary else ""

    def tell(self, work: RequestContext, plan: Plan) -> None:
        """Note what became of summaries with this request, once."""
        if work.client_request.mode != "on":
            return
        origin = plan.summary.origin if plan.summary else None
        if plan.plan_state.stale:
            self.note(work.key, "summary.stale", work.conversation.beginning, reason=plan.plan_state.stale)
        if plan.adopted and origin is not None:
            self.note(work.key, "summary.adopted", origin.id, id=origin.id, generation=origin.generation)

    def note(self, key: Key, name: str, of: str, **details: str | int) -> None:
        """Note what became of a thing, once."""
        said = (key, f"{name} {of} {details.get('reason', '')}")
        if said not in self._told:
            self._told[said] = True
            self._audit_log.note(key, name, **details)


# a pure function of its arguments, so remembering changes nothing but the time it takes
@lru_cache(maxsize=256)
def policy_of(name: str, preset: Preset) -> str:
    """What the summaries and digests of a preset are kept under: its name and their parameters."""
    said = f"{summarizing(preset.policies)}{digesting(preset.policies)}{preset.exceptions.system or ''}"
    return f"{name}:{sha256(said.encode()).hexdigest()[:8]}"
