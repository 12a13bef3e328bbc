"""What a session costs with cache marks of ours and nothing else: what compaction saves is counted from there."""

from dataclasses import dataclass, field

import orjson

from policies.assemble import PlanOptions, assemble
from policies.context import TokenCounter
from policies.dialects import DIALECTS, Request
from policies.model.conversation import Conversation, Message, converse
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
    _messages: dict[bytes, Message] = field(default_factory=dict)
    _conversation: Conversation | None = None
    _state: PlanState | None = None
    _request: Request | None = None

    def __call__(self, body: Json) -> Json:
        """The body that would be sent in the place of this one."""
        api = DIALECTS[self.dialect]
        request = api.split(orjson.dumps(body), self._request, False)
        if request is None:
            return body
        self._request = request
        raws = [request.raw(at) for at in range(len(request.spans))]
        self._messages |= {raw: api.read(raw, self.count) for raw in raws if raw not in self._messages}
        self._conversation = converse([self._messages[raw] for raw in raws], self._conversation)
        options = PlanOptions(Preset(()), self.prices, recall=False)
        settings = assemble(api, request, self._conversation, self.count, options).settings
        planned = plan(self._conversation, settings, state=self._state)
        self._state = planned.state
        rendering = render(self.dialect, request, self._conversation, planned)
        sent: Json = orjson.loads(body_of(api, request, planned, rendering, marks=settings.marks))
        return sent
