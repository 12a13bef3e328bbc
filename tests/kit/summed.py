"""A conversation planned request by request, without sockets: what is wanted is summed up at once by a summariser that
keeps nothing, and stands with the next request where the planner adopts it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from policies.assemble import PlanOptions, assemble
from policies.context import Summarizing, Want
from policies.dialects import DIALECTS
from policies.model.conversation import Conversation
from policies.model.memory import Memory
from policies.model.summary_record import Criteria, SummaryCost, SummaryRecord, source_of
from policies.money.catalog import prices_for
from policies.money.prices import BudgetLimits
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanState
from policies.presets import PRESETS
from policies.render import body_of, render
from proxy.lab.replay.recorded import RequestReader
from proxy.summaries.jobs import PROMPTS
from tests.kit.histories import Json

NOTHING = (
    "Goals: the work is under way, step by step, and nothing has failed so far in all of what was tried until now. "
    "Facts: each of the questions was answered in full, one after the other. Open: go on with what is left, in order. "
)
"""A summary that keeps not one word of what it stands for."""
_TOKENS = 800


def a_token_for_four(text: str) -> int:
    """Counts fast, and the same for every model."""
    return (len(text) + 3) // 4


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One request: its plan, what it asks for, and its body as it is sent."""

    conversation: Conversation
    plan: Plan
    sent: Json

    @property
    def wants(self) -> Sequence[Want]:
        return self.plan.wants

    @property
    def is_adopted(self) -> bool:
        """Whether a summary stands from this request on."""
        return bool(self.plan.adopted)

    @property
    def turns(self) -> int:
        """Whole turns that it sends: each has one reply of the model. What people wrote in the place of others stands
        between messages of the model, too."""
        summary = self.plan.summary
        between = 1 + summary.system if summary and summary.words else 0
        return sum(message["role"] == "assistant" for message in self.sent["messages"]) - between

    @property
    def text(self) -> str:
        return json.dumps(self.sent, ensure_ascii=False)


@dataclass
class SummedConversation:
    """A client that goes on with one conversation, by a preset, at the prices of a model."""

    preset: str
    model: str
    dialect: str = "openai_chat"
    window: int | None = None
    """A cap on the model's window."""
    records: list[SummaryRecord] = field(default_factory=list)
    state: PlanState | None = None

    def __post_init__(self) -> None:
        self._reader = RequestReader(self.dialect, a_token_for_four)
        self._criteria = Criteria(self.preset, PROMPTS["compaction"].version)
        prices, chosen = prices_for(self.model), PRESETS[self.preset]
        self._options = PlanOptions(
            preset=chosen,
            prices=prices,
            summarizing=Summarizing(self._criteria, prices, chosen.writing.tokens or _TOKENS, 0.0),
            digesting=None,
            limits=BudgetLimits(window=self.window),
        )

    def ask(self, messages: Sequence[Json], **fields: Any) -> PlannedTurn:
        """The next request, and a summary for what it asks for."""
        api = DIALECTS[self.dialect]
        body = {"model": self.model, api.fields.history: messages, **fields}
        request, conversation = self._reader.read(body)
        planned = assemble(api, request, conversation, a_token_for_four, self._options)
        result = plan(conversation, planned.settings, Memory(summaries=tuple(self.records)), self.state)
        self.state = result.state
        rendering = render(self.dialect, request, conversation, result)
        sent = body_of(api, request, result, rendering, marks="", tool=planned.tool, consent=planned.consent)
        self.records += [self._written(conversation, want) for want in result.wants]
        return PlannedTurn(conversation, result, orjson.loads(sent))

    def _written(self, conversation: Conversation, want: Want) -> SummaryRecord:
        index, number = conversation.index, len(self.records)
        first, last = index[want.first], index[want.last]
        messages = sorted({conversation.blocks[i].message for i in range(first, last + 1)})
        return SummaryRecord(
            id=f"s{number}",
            conversation="c",
            first=want.first,
            last=want.last,
            sources=tuple(source_of(conversation, message) for message in messages),
            model=self.model,
            content=NOTHING,
            tokens_before=sum(conversation.blocks[i].tokens for i in range(first, last + 1)),
            tokens_after=a_token_for_four(NOTHING),
            created_at=0.0,
            policy=self._criteria.policy,
            prompt=self._criteria.prompt,
            generation=want.generation,
            previous=want.previous,
            spent=SummaryCost(calls=1),
        )
