"""Digests of single outputs on a request's way: what is known of them, what is asked for, and what is said about it.

Laws
  The same output is digested once for the same owner in a tenant, whatever became of it: it is at hand in all of that
  owner's conversations, and the store keeps it with the one that caused it.
  Nothing here waits but where `summary_wait` says so. What is not there in time is made by rule, and stays so.
  A digest stands where its text was claimed first: no two replicas send different ones.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

from cachetools import LRUCache

from policies.context import DigestWant, Memory, ModelDigest
from policies.model.conversation import Block, Conversation
from policies.model.edits import Replace
from policies.model.summary_record import SummaryRecord, stale
from policies.model.windows import Large, is_large
from policies.money.prices import Prices
from policies.planning.state import Plan, PlanState
from policies.presets import Preset
from policies.tools import RECALL
from proxy.identity import owner_of
from proxy.requests import RequestContext
from proxy.store import Key
from proxy.summaries.jobs import Digest, Place, digest_place
from proxy.summaries.maker import State
from proxy.summaries.prompts import DIGESTS
from proxy.summaries.rolling import RollingSummaries, SummaryServices, Waiting

_ASKED = 16_384
"""Outputs of which is remembered that the store was asked for them."""


class Digests:
    """Looks after the digests of outputs."""

    def __init__(self, staff: SummaryServices, rolling: RollingSummaries) -> None:
        self._wait = staff.settings.summary_wait / 1000
        self._staff = staff
        self._rolling = rolling
        self._asked: LRUCache[tuple[Key, str], bool] = LRUCache(_ASKED)

    def digesting(self, dialect: str, model: str, preset: Preset) -> Prices | None:
        """What a model costs that can be asked for digests in conversations in this API; None where none can. Before
        the first sight of an output there is no time for it, unless people wait."""
        if preset.digests is None or (preset.exceptions.first_sight and not self._wait):
            return None
        writers = self._staff.summarizer.models(dialect, model, preset.writing)
        return self._staff.summarizer.prices(writers[0]) if writers else None

    async def known(self, work: RequestContext, plan_state: PlanState | None, memory: Memory) -> Memory:
        """What is remembered, with the digests of outputs that nothing stands for yet: those at hand, and of what comes
        of age with this request those in the store."""
        over, placed = work.preset.digests, self._placing(work)
        if over is None or work.setup.digesting is None or work.client_request.mode != "on":
            return memory
        missing = [block for block in _of_age(work, over) if self._is_unasked(work, block, placed(block))]
        stored = await self._stored(work, missing) if missing else ()
        shortened = plan_state.edits if plan_state else {}
        outputs = _outputs(work.conversation, range(work.conversation.ends[-1]), over)
        found = {
            block.said.hex(): self._found(work, block, (*stored, *self._staff.summaries.made(*placed(block))))
            for i, block in outputs
            if i not in shortened
        }
        return replace(memory, digests={said: made for said, made in found.items() if made})

    async def waited(
        self, work: RequestContext, plan_state: PlanState | None, memory: Memory, waiting: Waiting | None
    ) -> Memory | None:
        """What is known after a wait for digests of outputs that come of age now; None where nobody waits."""
        over, placed = work.preset.digests, self._placing(work)
        places = [] if over is None or not self._wait else [placed(block) for block in _of_age(work, over)]
        pending = [place for place in places if self._staff.summaries.state(*place) == "pending"]
        if not pending or work.client_request.mode != "on":
            return None
        async with waiting() if waiting is not None and work.request.streams else nullcontext():
            await asyncio.gather(*(self._staff.summaries.wait(*place, self._wait) for place in pending))
        return await self.known(work, plan_state, memory)

    def want(self, work: RequestContext, plan: Plan) -> None:
        """Have the digests made that the plan wants, in the background."""
        owner = self._rolling.payer(work) if plan.digests else ""
        for want in plan.digests if owner else ():
            self._staff.summaries.start(self._order(work, want, owner))

    def word(self, work: RequestContext, plan: Plan, memory: Memory) -> str:
        """What the reply says of digests; empty where there is nothing to say."""
        over, placed = work.preset.digests, self._placing(work)
        if over is None or work.client_request.mode != "on":
            return ""
        conversation = work.conversation
        wanted = [conversation.blocks[conversation.index[want.at]] for want in plan.digests]
        blocks = [*wanted, *_of_age(work, over)]
        states: set[State] = {self._staff.summaries.state(*placed(block)) for block in blocks}
        if "pending" in states or "failed" in states:
            return "pending" if "pending" in states else "failed"
        return "adopted" if self.adopted(work, plan, memory) else ""

    def tell(self, work: RequestContext, plan: Plan, memory: Memory) -> None:
        """Note the digests that stand from this request on, once."""
        for block in self.adopted(work, plan, memory) if work.client_request.mode == "on" else ():
            self._rolling.note(work.key, "digest.adopted", block.anchor, first=block.said.hex(), last=block.anchor)

    def adopted(self, work: RequestContext, plan: Plan, memory: Memory) -> Sequence[Block]:
        """The outputs for which a digest by a model stands from this request on."""
        edits = (
            [edit for edit in plan.new if isinstance(edit, Replace) and edit.by == "digest"] if memory.digests else []
        )
        blocks = ((edit, work.conversation.blocks[work.conversation.index[edit.at]]) for edit in edits)
        found = ((edit, block, memory.digests.get(block.said.hex())) for edit, block in blocks)
        return [block for edit, block, made in found if made and edit.text.startswith(made.text)]

    def _order(self, work: RequestContext, want: DigestWant, owner: str) -> Digest:
        return Digest(
            key=work.key,
            conversation=work.conversation,
            want=want,
            model=work.request.model,
            auth=work.client_request.auth,
            owner=owner,
            count=work.setup.count,
            policy=work.policy,
            dialect=work.client_request.dialect,
            writing=work.preset.writing,
        )

    async def _stored(self, work: RequestContext, blocks: Sequence[Block]) -> Sequence[SummaryRecord]:
        """What the store has of these outputs; it is asked once."""
        for block in blocks:
            self._asked[work.key, block.said.hex()] = True
        return await self._staff.cached_store.records(work.key, [block.said.hex() for block in blocks])

    def _is_unasked(self, work: RequestContext, block: Block, place: Place) -> bool:
        """Whether nobody here knows what became of a digest, and the store may: what is pending here may be there."""
        known = self._staff.summaries.made(*place) or self._staff.summaries.state(*place) == "failed"
        return not known and (work.key, block.said.hex()) not in self._asked

    def _found(self, work: RequestContext, block: Block, records: Sequence[SummaryRecord]) -> ModelDigest | None:
        """The digest of an output that may be used now."""
        said, now = block.said.hex(), self._staff.clock()
        ours = (each for each in reversed(records) if each.first == said and not each.rejected)
        good = (each for each in ours if self._counts(work, each, now))
        return next((ModelDigest(each.content, each.lines) for each in good), None)

    def _counts(self, work: RequestContext, record: SummaryRecord, now: float) -> bool:
        prompt = next((prompt for prompt in DIGESTS.values() if prompt.version == record.prompt), None)
        if record.kind != "digest" or prompt is None:
            return False
        dialect, model, writing = work.client_request.dialect, work.request.model, work.preset.writing
        return not stale(record, self._staff.summaries.made_with(dialect, model, work.policy, prompt, writing), now)

    def _placing(self, work: RequestContext) -> Callable[[Block], Place]:
        """Says where the digest of an output is at hand."""
        owner = owner_of(self._staff.secret, work.client_request.credential)
        return lambda block: digest_place(work.key.tenant, owner, block.said.hex())


def _of_age(work: RequestContext, over: Large) -> list[Block]:
    """The large outputs that may be shortened from this request on."""
    ends, fresh = work.conversation.ends, 0 if work.preset.exceptions.first_sight else 1
    if len(ends) <= fresh + 1:
        return []
    return [block for _, block in _outputs(work.conversation, range(ends[-2 - fresh], ends[-1 - fresh]), over)]


def _outputs(conversation: Conversation, span: range, over: Large) -> Iterator[tuple[int, Block]]:
    """The large outputs of tools in a span."""
    for i in span:
        block = conversation.blocks[i]
        if block.answers is not None and block.tool != RECALL and is_large(block.text, block.tokens, over):
            yield i, block
