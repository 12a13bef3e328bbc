"""Digests of single outputs of tools: the writer that has a cheap model shorten what is large.

Laws
  The same output is digested once for the same owner in a tenant, also where the answer was rejected: the digest is
  used in all of that owner's conversations, and stored with the one that caused it.
  A digest that is not there when its output may first be shortened is made by rule, and stays so.
  A digest stands where its text was claimed first: no two replicas send different ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cachetools import LRUCache

from policies.model.conversation import Block
from policies.model.edits import Replace
from policies.model.memory import Memory, ModelDigest
from policies.model.summary_record import SummaryRecord, stale
from policies.model.windows import is_large
from policies.money.prices import Prices
from policies.planning.state import Plan, PlanState
from policies.tools import RECALL
from proxy.identity import owner_of
from proxy.requests import PlannedRequest, RequestContext
from proxy.store import Key
from proxy.summaries.background import SummaryServices, Waiting
from proxy.summaries.jobs import DIGEST_PROMPTS, DigestJob, Place, digest_place
from proxy.summaries.maker import State

_LOOKUPS = 16_384
"""Outputs of which it is remembered that the store was asked for their digests."""


class OutputDigests:
    """Looks after the digests of outputs."""

    def __init__(self, services: SummaryServices) -> None:
        self._services = services
        self._maker = services.maker
        self._lookups: LRUCache[tuple[Key, str], bool] = LRUCache(_LOOKUPS)

    async def before_plan(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> tuple[RequestContext, Memory]:
        """Adds the price of a model that can be asked for digests, and the digests of outputs that no edit has
        shortened: those written here, and of what may be shortened from now on those in the store."""
        digesting = self._digesting(context)
        context = replace(context, setup=replace(context.setup, digesting=digesting))
        if digesting is None or context.client_request.mode != "on":
            return context, memory
        place_of, unknown = self._places(context), list[str]()
        for block in _of_age(context):
            place = place_of(block)
            is_over = self._maker.recent(*place) or self._maker.state(*place) == "failed"
            if not is_over and (context.key, block.text_digest.hex()) not in self._lookups:  # a replica may have it
                unknown.append(block.text_digest.hex())
        self._lookups.update({(context.key, digest): True for digest in unknown})
        stored = await self._services.cached_store.records(context.key, unknown) if unknown else ()
        return context, self._merged(context, plan_state, memory, stored)

    def after_plan(self, planned: PlannedRequest) -> None:
        """Start the digests that the plan wants."""
        context = planned.context
        owner = self._services.payer(context) if planned.plan.digests else ""
        for want in planned.plan.digests if owner else ():
            self._maker.start(
                DigestJob(
                    key=context.key,
                    conversation=context.conversation,
                    want=want,
                    model=context.request.model,
                    auth=context.client_request.auth,
                    owner=owner,
                    count=context.setup.count,
                    policy=context.policy,
                    dialect=context.client_request.dialect,
                    writing=context.preset.writing,
                )
            )

    async def wait(self, planned: PlannedRequest, waiting: Waiting | None) -> Memory | None:
        """The memory with the digests, of those being written, of outputs that may be shortened from now on; None where
        there was no wait."""
        context = planned.context
        if not await self._services.wait(context, map(self._places(context), _of_age(context)), waiting):
            return None
        if context.setup.digesting is None:
            return planned.memory
        return self._merged(context, planned.plan_state, planned.memory)

    def report(self, planned: PlannedRequest) -> str:
        """Notes the digests that stand from this request on; says `pending`, `failed`, `adopted` or nothing."""
        context, plan, conversation = planned.context, planned.plan, planned.context.conversation
        if context.client_request.mode != "on":
            return ""
        adopted = adopted_digests(context, plan, planned.memory)
        for block in adopted:
            digest = block.text_digest.hex()
            self._services.note_once(context.key, "digest.adopted", block.anchor, first=digest, last=block.anchor)
        if context.preset.digests is None:
            return ""
        wanted = [conversation.blocks[conversation.index[want.at]] for want in plan.digests]
        places = map(self._places(context), (*wanted, *_of_age(context)))
        states: set[State] = {self._maker.state(*place) for place in places}
        for state in ("pending", "failed"):
            if state in states:
                return state
        return "adopted" if adopted else ""

    def _digesting(self, context: RequestContext) -> Prices | None:
        """What a model costs that can be asked for digests; None where none can. Where outputs are shortened before
        the model first sees them there is no time to ask, unless requests wait."""
        in_time = self._services.settings.summary_wait or not context.preset.exceptions.first_sight
        return self._services.prices(context) if context.preset.digests is not None and in_time else None

    def _merged(
        self,
        context: RequestContext,
        plan_state: PlanState | None,
        memory: Memory,
        stored: Sequence[SummaryRecord] = (),
    ) -> Memory:
        """The memory with the digests that may be used now, of outputs that no edit has shortened."""
        digests, place_of, now = dict(memory.digests), self._places(context), self._services.clock()
        for i, block in _outputs(context, range(context.conversation.ends[-1])):
            if plan_state is None or i not in plan_state.edits:
                records = (*stored, *self._maker.recent(*place_of(block)))
                usable = (each for each in reversed(records) if self._is_usable(context, block, each, now))
                record = next(usable, None)
                if record is not None:
                    digests[block.text_digest.hex()] = ModelDigest(record.content, record.lines)
        return replace(memory, digests=digests)

    def _is_usable(self, context: RequestContext, block: Block, record: SummaryRecord, now: float) -> bool:
        prompt = next((prompt for prompt in DIGEST_PROMPTS.values() if prompt.version == record.prompt), None)
        if prompt is None or record.kind != "digest" or record.first != block.text_digest.hex() or record.rejected:
            return False
        return not stale(record, self._services.criteria(context, prompt), now)

    def _places(self, context: RequestContext) -> Callable[[Block], Place]:
        """The place at which the digest of an output is made, for the sender of this request."""
        owner = owner_of(self._services.secret, context.client_request.credential)
        return lambda block: digest_place(context.key.tenant, owner, block.text_digest.hex())


def adopted_digests(context: RequestContext, plan: Plan, memory: Memory) -> list[Block]:
    """The outputs for which a model's digest stands from this request on."""
    conversation, adopted = context.conversation, list[Block]()
    for edit in plan.new if memory.digests else ():
        if isinstance(edit, Replace) and edit.by == "digest":
            block = conversation.blocks[conversation.index[edit.at]]
            digest = memory.digests.get(block.text_digest.hex())
            if digest and edit.text.startswith(digest.text):
                adopted.append(block)
    return adopted


def _of_age(context: RequestContext) -> list[Block]:
    """The large outputs that may be shortened from this request on."""
    ends, fresh = context.conversation.ends, 0 if context.preset.exceptions.first_sight else 1
    if len(ends) <= fresh + 1:
        return []
    return [block for _, block in _outputs(context, range(ends[-2 - fresh], ends[-1 - fresh]))]


def _outputs(context: RequestContext, span: range) -> Iterator[tuple[int, Block]]:
    """The large outputs of tools among these blocks; none where the preset has no digests."""
    over = context.preset.digests
    if over is None:
        return
    for i in span:
        block = context.conversation.blocks[i]
        if block.answers is not None and block.tool != RECALL and is_large(block.text, block.tokens, over):
            yield i, block
