"""What a session costs with cache marks of ours and nothing else: what compaction saves is counted from there."""

from dataclasses import dataclass

import orjson

from policies.assemble import PlanOptions, assemble
from policies.context import TokenCounter
from policies.dialects import DIALECTS, Request
from policies.model.conversation import Conversation
from policies.money.prices import Prices
from policies.planning.plan import plan
from policies.planning.state import PlanState
from policies.presets import Preset
from policies.render import body_of, render
from proxy.lab.replay.recorded import Json


@dataclass
class MarksAlone:
    """The requests of one session, one after the other, as a preset without policies would have them sent."""

    dialect: str
    prices: Prices
    count: TokenCounter
    _state: PlanState | None = None

    def sent(self, request: Request, conversation: Conversation) -> Json:
        """The body that would be sent in the place of this request."""
        api, options = DIALECTS[self.dialect], PlanOptions(Preset(()), self.prices, recall=False)
        settings = assemble(api, request, conversation, self.count, options).settings
        planned = plan(conversation, settings, state=self._state)
        self._state = planned.state
        rendering = render(self.dialect, request, conversation, planned)
        body: Json = orjson.loads(body_of(api, request, planned, rendering, marks=settings.marks))
        return body
