"""Rolling summaries: the writer that has old turns of a conversation summarized, and the summary before it extended.

Laws
  What became of a summary is reported: in the reply's header, and as an event.
  A stale summary is an error to clients only where `summary_stale` is `fail`.
"""

from dataclasses import replace
from functools import lru_cache
from hashlib import sha256

from policies.context import Summarizing
from policies.model.memory import Memory
from policies.planning.state import Plan, PlanState
from policies.presets import Preset, described
from policies.rules.digest import Digest
from policies.rules.summarize import Summarize
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.requests import PlannedRequest, RequestContext
from proxy.summaries.background import SummaryServices, Waiting
from proxy.summaries.jobs import SummaryJob, prompt_of


class RollingSummaries:
    """Looks after the rolling summaries of conversations."""

    def __init__(self, services: SummaryServices) -> None:
        self._services = services
        self._maker = services.maker

    async def before_plan(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> tuple[RequestContext, Memory]:
        """Adds how summaries are written for this conversation, and those that were written here."""
        summarizing = self._summarizing(context)
        return replace(context, setup=replace(context.setup, summarizing=summarizing)), self._merged(context, memory)

    def after_plan(self, planned: PlannedRequest) -> None:
        """Start the summary that the plan wants."""
        context, plan = planned.context, planned.plan
        if self._may_start(context, plan):
            self._maker.start(
                SummaryJob(
                    key=context.key,
                    conversation=context.conversation,
                    want=plan.wants[-1],
                    model=context.request.model,
                    auth=context.client_request.auth,
                    owner=self._services.payer(context),
                    count=context.setup.count,
                    policy=context.policy,
                    records=planned.memory.summaries,
                    dialect=context.client_request.dialect,
                    exceptions=context.preset.exceptions,
                    writing=context.preset.writing,
                )
            )

    async def wait(self, planned: PlannedRequest, waiting: Waiting | None) -> Memory | None:
        """The memory with the summary that the plan wants, if it is written in time; None where there was no wait."""
        context = planned.context
        places = [(context.key, context.conversation.beginning)] if self._may_start(context, planned.plan) else []
        if not await self._services.wait(context, places, waiting):
            return None
        summaries = await self._services.cached_store.summaries(context.key, context.conversation)
        return self._merged(context, replace(planned.memory, summaries=summaries))

    def report(self, planned: PlannedRequest) -> str:
        """Notes that a summary stands from this request on, or is stale; `stale:REASON`, `pending`, `failed`,
        `adopted` or nothing for the reply."""
        context, plan = planned.context, planned.plan
        if context.client_request.mode != "on":
            return ""
        key, beginning, stale = context.key, context.conversation.beginning, plan.state.stale
        if stale:
            self._services.note_once(key, "summary.stale", beginning, reason=stale)
        origin = plan.summary.origin if plan.summary else None
        if plan.adopted and origin is not None:
            self._services.note_once(key, "summary.adopted", origin.id, id=origin.id, generation=origin.generation)
        if stale:
            return f"stale:{stale}"
        state = self._maker.state(key, beginning) if context.preset.summarizes else ""
        if state == "pending" or (state and (plan.wants or plan.summary is None)):
            return state
        return "adopted" if plan.summary else ""

    def _summarizing(self, context: RequestContext) -> Summarizing | None:
        """How summaries are written now; None where the preset wants none, or no model can be asked for one."""
        prices, writing = self._services.prices(context), context.preset.writing
        if prices is None or not context.preset.summarizes:
            return None
        criteria = self._services.criteria(context, prompt_of("compaction", writing.prompt))
        most = writing.tokens or self._services.settings.summary_tokens
        return Summarizing(criteria, prices, most, self._services.clock())

    def _merged(self, context: RequestContext, memory: Memory) -> Memory:
        """The memory with the summaries that were written here: the store may not have them yet."""
        recent = self._maker.recent(context.key, context.conversation.beginning) if context.preset.summarizes else ()
        by_id = {record.id: record for record in (*memory.summaries, *recent)}
        return replace(memory, summaries=tuple(sorted(by_id.values(), key=lambda record: record.created_at)))

    def _may_start(self, context: RequestContext, plan: Plan) -> bool:
        if not plan.wants or not self._services.payer(context):
            return False
        return not plan.state.stale or self._services.settings.summary_stale == "regenerate"


def refuse_stale(settings: Settings, context: RequestContext, plan: Plan) -> None:
    """Raises ApiError where the summary of the conversation is stale and `summary_stale` is `fail`."""
    stale = plan.state.stale if context.client_request.mode == "on" and plan.summary is None else ""
    if stale and settings.summary_stale == "fail":
        message = (
            f"The summary of this conversation is stale ({stale}) and `summary_stale` is `fail`: "
            "start a new conversation, or have it forgotten (DELETE /narrows/conversations/ID)."
        )
        raise ApiError(400, message, "stale_summary", "messages")


# a pure function of its arguments, so remembering changes nothing but the time it takes
@lru_cache(maxsize=256)
def policy_of(name: str, preset: Preset) -> str:
    """The name of a preset with a hash of its parameters: summaries and digests written under another do not count."""
    writing = described(policy for policy in preset.policies if isinstance(policy, (Summarize, Digest)))
    return f"{name}:{sha256(f'{writing}{preset.exceptions.system}'.encode()).hexdigest()[:8]}"
