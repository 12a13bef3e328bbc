"""The provider: what it answers to whom. No I/O: that is in listener.py."""

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from cachetools import LRUCache
from multidict import CIMultiDictProxy

from policies.dialects import DEFAULT
from policies.money.caches import PREFIX, CacheRule, rule_for
from policies.money.prices import Prices, Usage
from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import (
    CREATED,
    JSON_REPLY,
    Abort,
    Answer,
    Excess,
    Json,
    ModelReply,
    ProviderReply,
    Reflect,
    Say,
    Send,
    Wording,
    call_texts,
    http_reply,
)
from proxy.lab.provider.api import Api, Violation, first_violation, refusal, reply_by
from proxy.lab.provider.apis.chat import OpenAIChat
from proxy.lab.provider.apis.messages import AnthropicMessages
from proxy.lab.provider.apis.responses import OpenAIResponses
from proxy.lab.provider.cache import PromptCache, PromptReader
from proxy.lab.provider.prompt import MARKS, Count, ProviderPrompt
from proxy.sse import decoded

APIS: Mapping[str, Api] = {
    api.client.dialect.name: api for api in (OpenAIChat(), OpenAIResponses(), AnthropicMessages())
}
"""The APIs by the name of their dialect. To add one: a subclass of Api, and a row."""
ROUTES = {
    **{api.path: (name, False) for name, api in APIS.items()},
    **{api.counting_path: (name, True) for name, api in APIS.items() if api.counting_path},
}
"""By path: which API answers there, and whether it only counts tokens."""
MODELS = ("GET", "/v1/models")
STORAGE = 64_000_000
"""Bytes of replies that later requests may refer to."""
LARGEST = 1 << 28
TURN_HEADER = "x-replay-turn"
"""Which recorded answer a request of a session wants: one whose history was cut does not show how far it is."""
_KEYS = sorted({api.client.dialect.http.key for api in APIS.values()}, key=lambda key: key[1])
"""Where a credential stands: a key alone counts before a token."""
_ALLOWED = dict.fromkeys(field for api in APIS.values() for field in api.client.dialect.fields.reserve)
"""Fields that say how many tokens the answer may have."""
NOT_SERVED = {404: "Unknown request URL: {} {}.", 405: "Not allowed: {} {}."}


def find_violation(body: object, rule: CacheRule = PREFIX, dialect: str = DEFAULT) -> Violation | None:
    return first_violation(APIS[dialect].checks, body, rule)


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
    json: Any = None
    resolved: Any = None
    """The same with everything in it that it refers to by id."""
    violation: Violation | None = None
    excess: Excess | None = None
    usage: Usage | None = None
    outcome: Literal["open", "finished", "aborted", "cancelled"] = "open"
    """`aborted` by a script's order, `cancelled` because the client went away."""
    sent: int = 0

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def credential(self) -> str:
        """The key or the bearer token, "" where there is none."""
        values = (self.headers.get(name, "").removeprefix(before) for name, before in _KEYS)
        return next(filter(None, values), "")

    @property
    def model(self) -> str:
        """The model asked for, "" where none is named."""
        model = self.json.get("model") if isinstance(self.json, dict) else None
        return model if isinstance(model, str) else ""

    def storage_key(self, name: str) -> bytes:
        return f"{self.credential}\0{name}".encode("utf-8", "surrogatepass")


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
    too_long: Wording | None = None
    """How it says that a prompt is too long, where it is not in the words of the API; then what the request allows for
    the answer counts against the window."""
    unmarkable: Container[str] = ()
    """Models for which a cache mark is an unknown field, as with providers that only took the API over."""
    refuse: Callable[[Json], Violation | None] = lambda _: None
    clock: Callable[[], float] = lambda: 0.0
    """By which entries of the cache expire."""
    keep: int = 100
    """How many requests are remembered, with all that they carried."""
    requests: deque[Received] = field(init=False)

    def __post_init__(self) -> None:
        self.requests = deque(maxlen=self.keep)
        self._readers = {name: PromptReader(self.count, api) for name, api in APIS.items()}
        self._cache = PromptCache(self.count, lambda: self.clock())
        self._stored: LRUCache[bytes, Json] = LRUCache(STORAGE, lambda value: len(jsontext.write(value)))
        self._sessions: dict[str, tuple[Say, ...]] = {}
        self._prices = lru_cache(maxsize=256)(self.prices)

    def play(self, credential: str, session: Sequence[Json | Say], dialect: str = DEFAULT) -> None:
        """Answer this credential with these answers, or those of a recorded session, one after the other."""
        answers = [answer for answer in session if isinstance(answer, Say)]
        recorded = [message for message in session if not isinstance(message, Say)]
        self._sessions[credential] = (*answers, *APIS[dialect].recorded_answers(recorded))

    def reply(self, received: Received) -> ProviderReply | Abort:
        """The answer to a request. A violation is answered whatever a script would have the model say."""
        self.requests.append(received)
        if received.method == "POST":
            received.dialect, received.counts = ROUTES.get(received.path, ("", False))
        prompt = self._judge(received, APIS[received.dialect]) if received.dialect else None
        answer = self.answer(received) if self.answer else None
        if received.excess is not None and self.too_long is not None:
            answer = self.too_long(received.excess)
        match answer or self._own_answer(received):
            case Abort() as abort:
                return abort
            case Reflect(wire):
                reflection = {
                    "method": received.method,
                    "target": received.target,
                    "headers": [list(pair) for pair in received.headers.items()],
                    "body": received.body.decode("latin-1"),
                }
                return http_reply(200, JSON_REPLY, (jsontext.write(reflection),), wire)
            case Send() as send:
                return _send(send)
            case Say() as say:
                return self._say(received, prompt, say)

    # --- requests ---

    def _judge(self, received: Received, api: Api) -> ProviderPrompt | None:
        """Parse the body and note why it is refused; the prompt where it is not."""
        checks, prompt = api.counting_checks if received.counts else api.checks, None

        def violation(body: Json) -> Violation | None:
            missing = api.missing_header(body, received.headers)
            refused = missing or first_violation(checks, body, self._rule(received.model)) or self._unknown_mark(body)
            return refused or self.refuse(body)

        try:
            received.json = jsontext.read(_decoded(received))
            received.violation = violation(received.json)
            if received.violation is None:
                resolved = api.resolve(received.json, lambda name: self._stored.get(received.storage_key(name)))
                if isinstance(resolved, Violation):
                    received.violation = resolved
                else:
                    received.resolved = resolved
                    received.violation = None if resolved is received.json else violation(resolved)
            if received.violation is None:
                prompt = self._readers[received.dialect](received.resolved)
        except jsontext.NotJSONError:
            received.violation = Violation("The body of the request could not be read as JSON.")
            return None
        window = self._prices(received.model).window
        if prompt is not None and window is not None and not received.counts:
            received.violation, received.excess = self._excess(api, received.json, prompt.tokens, window)
        return prompt

    def _excess(self, api: Api, body: Json, tokens: int, window: int) -> tuple[Violation | None, Excess | None]:
        """The refusal of a prompt that is too long, and by how much it is."""
        answer = next((body[name] for name in _ALLOWED if body.get(name)), 0) if self.too_long else 0
        if tokens + answer <= window:
            return None, None
        return api.overflow(tokens, window), Excess(tokens, answer, window)

    def _unknown_mark(self, body: Json) -> Violation | None:
        """The refusal of the first cache mark, in the words of Anthropic's API, where the model takes none."""
        text = jsontext.write(body).decode("utf-8", "replace") if body.get("model") in self.unmarkable else ""
        mark = next((mark for mark in sorted(MARKS) if f'"{mark}":' in text), "")
        return refusal(f"messages.content.{mark}", "Extra inputs are not permitted") if mark else None

    def _rule(self, model: str) -> CacheRule:
        """By the model whose prices are taken: a replay may give one model's requests another's prices."""
        prices = self._prices(model)
        return rule_for(prices.model or model, prices)

    # --- answers ---

    def _say(self, received: Received, prompt: ProviderPrompt | None, say: Say) -> ProviderReply:
        """The model's reply, or why there is none; the cache is charged, and the reply stored."""
        if not received.dialect:
            return _send(_not_served(404, received))
        api, violation = APIS[received.dialect], received.violation
        if violation is not None:
            return http_reply(violation.status, JSON_REPLY, (api.error_body(violation),), say.wire)
        assert prompt is not None  # what is not refused has one
        if received.counts:
            count = jsontext.write({"input_tokens": prompt.tokens, **api.counting_fields})
            return http_reply(200, JSON_REPLY, (count,), say.wire)
        say = api.adapt(say, received.json)
        owner = f"{received.credential}\0{received.model}"
        usage = self._cache.charge(owner, prompt, self._rule(received.model))
        choices = received.json.get(api.choices_field) or 1
        thinking = sum(map(self.count, say.thinking))
        texts = (say.content or "", *(text for call in say.calls for text in call_texts(call)))
        received.usage = replace(usage, completion=(sum(map(self.count, texts)) + thinking) * choices)
        reply = ModelReply(
            say=say,
            request=received.json,
            usage=received.usage,
            reasoning_tokens=thinking * choices,
            raw=received.body,
            headers=received.headers,
        )
        for name, value in api.objects_to_store(reply, received.resolved).items():
            with suppress(ValueError):  # heavier than all that may be stored
                self._stored[received.storage_key(name)] = value
        return reply_by(api, reply)

    def _own_answer(self, received: Received) -> Answer:
        """The provider's own answer: the models, a stored reply, the recorded session, or a sentence."""
        if (received.method, received.path) == MODELS:
            rows = [{"id": name, "object": "model", "created": CREATED, "owned_by": "narrows"} for name in self.models]
            return Send(body=jsontext.write({"object": "list", "data": rows}))
        if not received.dialect:
            folder, _, name = received.path.rpartition("/")
            if received.method == "GET" and any(folder == api.path for api in APIS.values()):
                earlier = self._stored.get(received.storage_key(name))
                if earlier is not None:
                    return Send(body=jsontext.write({key: value for key, value in earlier.items() if key != "input"}))
            return _not_served(405 if received.path in ROUTES or received.path == MODELS[1] else 404, received)
        if received.violation or received.counts:
            return self.default
        session = self._sessions.get(received.credential, ())
        if not session:
            return self.default
        turn, api = received.headers.get(TURN_HEADER, ""), APIS[received.dialect]
        history = received.resolved[api.client.dialect.fields.history]
        k = int(turn) if turn.isdecimal() else len(api.recorded_answers(history))
        return session[k] if k < len(session) else self.default


def _decoded(received: Received) -> bytes:
    encoding = received.headers.get("Content-Encoding", "identity").lower()
    if encoding == "identity":
        return received.body
    try:
        return decoded(received.body, encoding, LARGEST)
    except (KeyError, ValueError) as error:
        raise jsontext.NotJSONError(f"cannot decode {encoding}") from error


def _not_served(status: int, received: Received) -> Send:
    message = NOT_SERVED[status].format(received.method, received.path)
    api = next((api for api in APIS.values() if received.path.startswith(api.path)), APIS[DEFAULT])
    return Send(status, api.error_body(Violation(message, code="unknown_url", status=status)))


def _send(send: Send) -> ProviderReply:
    if not isinstance(send.body, bytes):
        return ProviderReply(send.status, (*send.headers, *send.wire.headers), send.body, send.wire)
    # a script may declare the length, or that there is none, by itself
    unsized = any(name.lower() in ("content-length", "transfer-encoding") for name, _ in send.headers)
    return http_reply(send.status, send.headers, (send.body,), send.wire, sized=not unsized)
