"""The first minute of a newcomer: the shipped sessions through a real Narrows, with the official client.

Each session is driven turn by turn, streaming, and its replies are checked as every replay's are. Beside the bills with
and without Narrows stands that of a naive sliding window, from the same cache arithmetic: it sends the fewest tokens
and still loses, because every request begins anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import openai

from policies.dialects import DIALECTS
from proxy.lab import sessions
from proxy.lab.breakdown import Share, by_kind, by_message
from proxy.lab.provider import APIS, PromptCache, PromptReader, rule_for
from proxy.lab.replay.bills import Bill, Report
from proxy.lab.replay.recorded import Json, Session, requests
from proxy.lab.replay.runs import Progress, Reply, replay
from proxy.lab.replay.stage import Options, Stage, staged

SHOWN = ("write_once", "long_day")
WINDOW = 20
"""Messages that the naive sliding window keeps."""


@dataclass(frozen=True, slots=True)
class Act:
    """One session of the demo. `messages` and the shares are those of its last request."""

    report: Report
    window: Bill
    messages: int
    shares: tuple[Share, ...]
    kinds: tuple[Share, ...]

    @property
    def held(self) -> bool:
        """Whether the prefix held: every request was answered, and every change of the prefix was declared."""
        return self.report.requests > 0 and not self.report.faults


async def demonstrate(model: str, progress: Progress = lambda: None) -> list[Act]:
    """Drive the shipped sessions at the prices of a model."""
    async with staged(model, Options()) as stage:
        return [await _act(recorded(name), stage, progress) for name in SHOWN]


def recorded(name: str) -> Session:
    """A session that is shipped."""
    found = sessions.load(name)
    return Session(name, found["model"], tuple(found["messages"]), tuple(found["tools"]))


async def _act(session: Session, stage: Stage, progress: Progress) -> Act:
    run = session.name
    # without `trust_env`: no proxy of the environment stands between this process and itself
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=stage.base_url, api_key=run, max_retries=0, http_client=http) as client:
        official = _Official(client)
        report = await replay(session, run, stage, official, progress)
    planned = stage.watching.newest[run]
    stage.forget(run)
    assert planned is not None
    sent = planned.context.conversation, planned.plan.edits, stage.count, planned.tokens_received
    window = sliding_window(session, stage, official.completions)
    return Act(report, window, session.turns[-1], tuple(by_message(*sent)), tuple(by_kind(*sent)))


class _Official:
    """The official client as a client of a replay; it remembers how long the answers were."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._create = client.chat.completions.with_raw_response.create
        self.completions: list[int] = []

    async def __call__(self, body: Json, headers: Mapping[str, str]) -> Reply:
        reader = DIALECTS["openai_chat"].reply()
        fields = {name: value for name, value in body.items() if name != "stream"}
        try:
            raw = await self._create(stream=True, extra_headers=headers, **fields)
            async for chunk in raw.parse():
                reader.feed(chunk.to_json().encode())
        except openai.APIStatusError as error:
            return Reply(error.status_code, error.response.headers, None, error.message)
        except openai.APIError as error:
            return Reply(0, {}, None, error.message)
        self.completions.append(reader.usage.completion if reader.usage else 0)
        return Reply(raw.status_code, raw.headers, reader.usage, "" if reader.usage else "the reply holds no usage")


def sliding_window(session: Session, stage: Stage, completions: list[int]) -> Bill:
    """What the session costs where each request carries only the newest messages."""
    bill, rule = Bill(stage.prices), rule_for(stage.prices.model, stage.prices)
    read, cache = PromptReader(stage.count, APIS["openai_chat"]), PromptCache(stage.count)
    for body, completion in zip(requests(session, stage.model, stage.marks), completions, strict=False):
        usage = cache.charge("", read(slid(body)), rule)
        bill.add(replace(usage, completion=completion))
    return bill


def slid(body: Json) -> Json:
    """The request with the system text and the newest messages alone, cut where no result loses its call."""
    messages = body["messages"]
    lead = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    start = max(lead, len(messages) - WINDOW)
    while start > lead and messages[start]["role"] == "tool":
        start -= 1
    return {**body, "messages": [*messages[:lead], *messages[start:]]}


def total() -> int:
    """How many requests it makes."""
    return sum(len(recorded(name).turns) for name in SHOWN)
