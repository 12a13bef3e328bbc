"""The provider itself: what it answers to whom. No I/O: that is the shell's."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

from multidict import CIMultiDictProxy

from policies.money.caches import CacheRule, rule_for
from policies.money.prices import Prices, Usage
from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import (
    CREATED,
    JSON_REPLY,
    Abort,
    Answer,
    Headers,
    Json,
    Reflect,
    Reply,
    Say,
    Send,
    Turn,
    call_texts,
    travelling,
)
from proxy.lab.provider.api import Api
from proxy.lab.provider.apis import APIS, PromptReader
from proxy.lab.provider.apis import CHAT as CHAT_DIALECT
from proxy.lab.provider.cache import PromptCache
from proxy.lab.provider.prompt import Bounded, Count, Prompt
from proxy.lab.provider.rules import Violation, first
from proxy.sse import undone

CHAT = ("POST", APIS[CHAT_DIALECT].PATH)
MODELS = ("GET", "/v1/models")
KEPT = 64_000_000
"""Bytes of replies that later requests may refer to."""
LARGEST = 1 << 28
"""Bytes of a decoded body."""
TURN_HEADER = "x-replay-turn"
"""Which recorded answer a request of a session wants, where its history was cut and no longer tells."""
ROUTES = {
    **{api.PATH: (name, False) for name, api in APIS.items()},
    **{api.COUNTING: (name, True) for name, api in APIS.items() if api.COUNTING},
}
"""Which API answers where, and whether it only counts there."""
REFUSALS = {404: "Unknown request URL: {} {}.", 405: "Not allowed: {} {}."}


@dataclass(slots=True)
class Received:
    """One request as it arrived. `usage`, `violation` and `outcome` are filled in as it is served."""

    method: str
    target: str
    headers: CIMultiDictProxy[str]
    body: bytes
    """The very bytes on the wire, encoded as the client encoded them."""
    dialect: str = ""
    """Whose request it is; empty where it asks for no answer of a model."""
    counts: bool = False
    """Whether only its tokens are to be counted."""
    json: Any = None
    """What the body says, where it is JSON."""
    whole: Any = None
    """The same with all that it refers to in it."""
    violation: Violation | None = None
    usage: Usage | None = None
    outcome: Literal["open", "finished", "aborted", "cancelled"] = "open"
    """`aborted` by a script's order, `cancelled` because the client went away."""
    sent: int = 0
    """Bytes of the body written so far."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def credential(self) -> str:
        """The key or the bearer token, "" where there is none."""
        return self.headers.get("x-api-key") or self.headers.get("Authorization", "").removeprefix("Bearer ")

    @property
    def model(self) -> str:
        """The model asked for, "" where none is named."""
        model = self.json.get("model") if isinstance(self.json, dict) else None
        return model if isinstance(model, str) else ""


Script = Callable[[Received], Answer | None]
"""Decides the answer to a request; None leaves it to the provider."""


@dataclass
class Provider:
    """A strict provider of several APIs. Sessions play back by credential; a script may answer instead."""

    prices: Callable[[str], Prices]
    count: Count
    answer: Script | None = None
    models: Sequence[str] = ()
    default: Say = field(default_factory=lambda: Say("Understood."))
    keep: int = 100
    """How many requests are remembered, with all that they carried."""
    requests: deque[Received] = field(init=False)

    def __post_init__(self) -> None:
        self.requests = deque(maxlen=self.keep)
        self._readers = {name: PromptReader(self.count, name) for name in APIS}
        self._cache = PromptCache(self.count)
        self._kept: Bounded[Json] = Bounded(KEPT)
        self._sessions: dict[str, tuple[Say, ...]] = {}
        self._prices = lru_cache(maxsize=256)(self.prices)

    def play(self, credential: str, session: Sequence[Json | Say], dialect: str = CHAT_DIALECT) -> None:
        """Answer this credential with these answers, or those of a recorded session, one after the other."""
        said = [answer for answer in session if isinstance(answer, Say)]
        recorded = [message for message in session if not isinstance(message, Say)]
        self._sessions[credential] = (*said, *APIS[dialect].answers(recorded))

    def reply(self, received: Received) -> Reply | Abort:
        """The answer to a request. A violation is answered whatever a script would have the model say."""
        self.requests.append(received)
        if received.method == "POST":
            received.dialect, received.counts = ROUTES.get(received.path, ("", False))
        prompt = self._judge(received, APIS[received.dialect]) if received.dialect else None
        answer = self.answer(received) if self.answer else None
        match answer or self._own_answer(received):
            case Abort() as abort:
                return abort
            case Reflect(wire):
                return travelling(200, JSON_REPLY, (_reflection(received),), wire)
            case Send() as send:
                return _sent(send)
            case Say() as say:
                return self._say(received, prompt, say)

    def _judge(self, received: Received, api: Api) -> Prompt | None:
        """Note what the body says and why it is refused; the prompt where it is not."""
        try:
            received.json = jsontext.read(_decoded(received))
            received.violation = self._violation(received, api, received.json)
            prompt = None if received.violation else self._prompt(received, api)
        except jsontext.NotJSONError:
            received.violation = Violation("The body of the request could not be read as JSON.")
            return None
        window = self._prices(received.model).window
        if prompt is not None and window is not None and prompt.tokens > window and not received.counts:
            received.violation = api.overflow(prompt.tokens, window)
        return prompt

    def _violation(self, received: Received, api: Api, asked: Json) -> Violation | None:
        checks = api.COUNT_CHECKS if received.counts else api.CHECKS
        return api.headless(asked, received.headers) or first(checks, asked, self._rule(received.model))

    def _prompt(self, received: Received, api: Api) -> Prompt | None:
        """The prompt with all that the request refers to; None where that cannot be."""
        found = api.resolved(received.json, lambda name: self._kept.get(_key(received, name)))
        if isinstance(found, Violation):
            received.violation = found
            return None
        received.whole = found
        if found is not received.json:
            received.violation = self._violation(received, api, found)
        return None if received.violation else self._readers[received.dialect](found)

    def _rule(self, model: str) -> CacheRule:
        """By the model whose prices are taken: a replay may give one model's requests another's prices."""
        prices = self._prices(model)
        return rule_for(prices.model or model, prices)

    def _say(self, received: Received, prompt: Prompt | None, say: Say) -> Reply:
        if not received.dialect:
            return _sent(_refusal(404, received))
        api = APIS[received.dialect]
        violation = received.violation
        if violation is not None:
            return travelling(violation.status, JSON_REPLY, (api.refused(violation),), say.wire)
        assert prompt is not None  # what is not refused has one
        if received.counts:
            counted = jsontext.write({"input_tokens": prompt.tokens, **api.COUNTED})
            return travelling(200, JSON_REPLY, (counted,), say.wire)
        return self._spoken(received, api, prompt, api.meant(say, received.json))

    def _spoken(self, received: Received, api: Api, prompt: Prompt, say: Say) -> Reply:
        owner = f"{received.credential}\0{received.model}"
        usage = self._cache.charge(owner, prompt, self._rule(received.model))
        choices = api.choices_of(received.json)
        thought = sum(map(self.count, say.thinking))
        received.usage = replace(usage, completion=(self._said(say) + thought) * choices)
        turn = Turn(say, received.json, received.usage, thought * choices, received.body, received.headers)
        for name, value in api.kept(turn, received.whole).items():
            self._kept.put(_key(received, name), value, len(jsontext.write(value)))
        return api.reply(turn)

    def _said(self, say: Say) -> int:
        called = chain.from_iterable(map(call_texts, say.calls))
        return sum(map(self.count, (say.content or "", *called)))

    def _own_answer(self, received: Received) -> Answer:
        """What the provider answers by itself: the models, the recorded session, or a fixed sentence."""
        if (received.method, received.path) == MODELS:
            return Send(body=_models(self.models))
        if not received.dialect:
            known = received.path in ROUTES or received.path == MODELS[1]
            return self._kept_reply(received) or _refusal(405 if known else 404, received)
        return self.default if received.violation or received.counts else self._recorded(received)

    def _kept_reply(self, received: Received) -> Send | None:
        """A reply that was kept, for a client that asks for it by its id."""
        before, _, name = received.path.rpartition("/")
        known = received.method == "GET" and any(before == api.PATH for api in APIS.values())
        found = self._kept.get(_key(received, name)) if known else None
        return None if found is None else Send(body=jsontext.write({k: v for k, v in found.items() if k != "input"}))

    def _recorded(self, received: Received) -> Say:
        session = self._sessions.get(received.credential, ())
        turn = received.headers.get(TURN_HEADER, "")
        k = int(turn) if turn.isdecimal() else APIS[received.dialect].answered(received.whole)
        return session[k] if k < len(session) else self.default


def _key(received: Received, name: str) -> bytes:
    return f"{received.credential}\0{name}".encode("utf-8", "surrogatepass")


def _decoded(received: Received) -> bytes:
    encoding = received.headers.get("Content-Encoding", "identity").lower()
    if encoding == "identity":
        return received.body
    try:
        return undone(received.body, encoding, LARGEST)
    except (KeyError, ValueError) as error:
        raise jsontext.NotJSONError(f"cannot decode {encoding}") from error


def _refusal(status: int, received: Received) -> Send:
    message = REFUSALS[status].format(received.method, received.path)
    dialect = next((name for name, api in APIS.items() if received.path.startswith(api.PATH)), CHAT_DIALECT)
    return Send(status, APIS[dialect].refused(Violation(message, code="unknown_url", status=status)))


def _sent(send: Send) -> Reply:
    if isinstance(send.body, bytes):
        return travelling(send.status, send.headers, (send.body,), send.wire, sized=not _framed_by(send.headers))
    return Reply(send.status, (*send.headers, *send.wire.headers), send.body, send.wire)


def _framed_by(headers: Headers) -> bool:
    """Whether a script says itself how long the body is."""
    return any(name.lower() in ("content-length", "transfer-encoding") for name, _ in headers)


def _reflection(received: Received) -> bytes:
    return jsontext.write(
        {
            "method": received.method,
            "target": received.target,
            "headers": [list(pair) for pair in received.headers.items()],
            "body": received.body.decode("latin-1"),
        }
    )


def _models(names: Sequence[str]) -> bytes:
    rows = [{"id": name, "object": "model", "created": CREATED, "owned_by": "narrows"} for name in names]
    return jsontext.write({"object": "list", "data": rows})
