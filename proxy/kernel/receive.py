"""The stage `receive`: what a client sends becomes a request that can be planned, or one that is relayed.

Laws
  By its mode, and by what is to stay as it is, a request can only lessen what is done with it. By its preset it can
  choose among those that `request_presets` names, and no other, and by its aim and size only where `request_aim`
  allows that; these count before the rules. A key of this gateway may name presets beside those, and a mode beside its
  client's own.
  What was read of one head counts for the next one of its connection only where both have the same lines.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import get_args

from aiohttp import web
from multidict import CIMultiDict

from policies.context import Aim
from policies.dialects.common import decoded, member
from policies.dialects.splitting import TooManyError, check_size
from policies.keep import Patterns, joined, patterns_of
from policies.model.parameters import MOST
from policies.model.rawjson import UnreadableError, members
from proxy.config import KeyRow, Settings
from proxy.config.routes import spoken
from proxy.config.rules import FEWEST_TOKENS, KEY_SHAPE, Mode, first_fitting
from proxy.config.upstreams import MODEL
from proxy.errors import ApiError
from proxy.identity.credential import auth_of, is_plain_key
from proxy.identity.who import IDENTITY, Identity, check_model, check_path, who
from proxy.kernel.addons import Exchange, RelayedRequest
from proxy.kernel.services import KernelParts
from proxy.kernel.wire.downstream import Connection, Upload
from proxy.requests import ClientRequest, Proof, RequestHead, RequestOptions
from proxy.upstreams.model_lists import Reach
from proxy.upstreams.upstream import readable_encodings, request_headers


async def receive(parts: KernelParts, exchange: Exchange) -> None:
    """Read the body, as far as anything depends on it, and find where the request goes. Raises ApiError."""
    if exchange.route.kind == "relay":
        await _receive_relayed(parts, exchange)
        return
    exchange.head = head = read_head(exchange.request, parts.settings, parts.secret)
    upload = Upload(exchange.request, parts.settings.body_timeout)
    try:
        exchange.raw, body = await upload.whole(parts.settings.body_limit)
    finally:
        exchange.received = upload.size
    exchange.client_request = client_request = await _client_request(parts, exchange, head, body)
    exchange.tenant, exchange.upstream = client_request.sender.tenant, client_request.upstream


async def _client_request(parts: KernelParts, exchange: Exchange, head: RequestHead, body: bytes) -> ClientRequest:
    settings, upstreams, route, deployment = parts.settings, parts.upstreams, exchange.route, exchange.deployment
    access, body_model, others = head.access, "", list[str]()
    has_models = access.key is not None and bool(access.key.models)
    is_ruled = any(rule.model for rule in settings.rules)
    if deployment or has_models or is_ruled or route.dialect in upstreams.need_model:
        body_model, *others = await allowed_names(body, head.forwarded) if has_models else (await named_model(body),)
    model = deployment or body_model
    options = options_of(head.wishes, settings, route.dialect, access, model)
    if has_models:
        check_model(access, model, *others)
    allowed = access.key.upstreams if access.key is not None else ()
    spends = _spends(parts, access)
    upstream = upstreams.choose(route.dialect, model or None, allowed, options.upstream, spends=spends)
    if deployment and MODEL not in upstream.url:
        check_named(deployment, body_model)
    is_accepted = parts.admission.states.is_accepted(access.owner)
    return ClientRequest(
        dialect=route.dialect,
        body=body,
        sender=access,
        conversation=head.conversation,
        options=options,
        proof=head.proof,
        counting=route.implied if route.kind == "count" else None,
        is_accepted=is_accepted,
        upstream=upstream.name,
        model=model,
        may_plan=options.mode == "off" or exchange.visit.begin_planning(is_accepted),
    )


def options_of(asks: RequestOptions, settings: Settings, dialect: str, access: Identity, model: str) -> RequestOptions:
    """How a request in this API is served, by what its headers ask for, the rules and the settings, in this order."""
    rule = first_fitting(settings.rules, dialect, access.digests, model) if settings.rules else None
    mode = (rule and rule.mode) or settings.mode
    preset = asks.preset or (rule and rule.preset) or ""
    return RequestOptions(
        mode=max(asks.mode, mode, key=MODES.index),
        preset="" if preset == settings.preset else preset,
        aim=asks.aim or (rule.aim if rule else None),
        context_tokens=asks.context_tokens or (rule.context_tokens if rule else None),
        stale=rule.stale if rule else asks.stale,
        record=rule.record if rule else None,
        upstream=(rule and rule.upstream) or "",
        keep=joined(asks.keep, rule.keep) if rule else asks.keep,
        tools=rule.tools if rule else None,
    )


async def _receive_relayed(parts: KernelParts, exchange: Exchange) -> None:
    request, settings = exchange.request, parts.settings
    upload = Upload(request, settings.body_timeout) if request.body_exists else None
    access = who(request, settings, parts.secret)
    reach = Reach(parts.upstreams, settings.rules, access, spoken(request.headers), _spends(parts, access))
    if lists := reach.lists(request.method, exchange.rest):
        exchange.relayed = RelayedRequest(reach, upload, lists)
        return
    try:
        body, body_model = await _body_and_model(parts, exchange, access, upload)
    except ApiError as error:
        raise (upload and upload.fault) or error from None
    finally:
        exchange.received = upload.size if upload else 0
    exchange.model, model = body_model, exchange.deployment or body_model
    upstream = reach.relayed(exchange.route.dialect, model, exchange.rest)
    exchange.upstream = upstream.name
    if access.key is not None and upstream.row.has_key:
        check_path(request.method, exchange.rest)
    if exchange.deployment and MODEL not in upstream.row.url and body_model:
        check_named(exchange.deployment, body_model)
    exchange.relayed = RelayedRequest(reach, upload, (), upstream, body, model)


async def _body_and_model(
    parts: KernelParts, exchange: Exchange, access: Identity, upload: Upload | None
) -> tuple[Upload | bytes | None, str]:
    """The body of a request that is relayed, and the model in it: read only where something depends on that, "" where
    it is not JSON. Raises ApiError."""
    settings, dialect, deployment = parts.settings, exchange.route.dialect, exchange.deployment
    has_models = access.key is not None and bool(access.key.models)
    if deployment:
        check_model(access, deployment)
    depends = dialect in parts.upstreams.need_model and not deployment
    depends = depends or any(rule.upstream and rule.model for rule in settings.rules)
    depends = depends or exchange.listener is not None
    is_json = "json" in exchange.request.headers.get("Content-Type", "").lower()
    if upload is None or not (has_models or ((depends or deployment) and is_json)):
        return upload, ""
    raw, body = await upload.whole(settings.body_limit)
    if not has_models:
        return raw, await named_model(body)
    body_model, *others = await allowed_names(body, exchange.request.headers)
    check_model(access, body_model, *others)
    return raw, body_model


def _spends(parts: KernelParts, access: Identity) -> bool:
    """True where a key of the gateway's own may go along: for its keys' holders; without keys, for this machine."""
    if not parts.upstreams.has_keys or access.key is not None:
        return True
    return parts.settings.auth == "passthrough" and access.is_here


# --- which models a request names, before anything else is read of it ---

_MANY_KEYS = 20_000
"""Colons in a body that may be as many keys; finding each member takes some 0.5 microseconds."""
_LARGE_BYTES = 2**22
"""A larger body is searched for its model in a thread, so that nobody else waits."""


def check_named(deployment: str, body_model: str) -> None:
    """Raises ApiError where an upstream that knows no deployments would be asked another model than the path says."""
    if body_model != deployment:
        message = "This upstream reads the model in the body, not in the path: name the deployment there too."
        raise ApiError(400, message, "model_mismatch", "model")


_FALLBACKS = frozenset(
    {
        *("models", "allowed_models"),  # OpenRouter; Vercel's gateway
        *("fallbacks", "context_window_fallbacks", "content_policy_fallbacks"),  # LiteLLM; AssemblyAI, orq.ai
        *("fallback", "fallback_model", "fallback_models", "default_fallbacks"),
    }
)
"""Fields that name models which may answer in the place of `model`: a name, a list, or objects."""
_UNREADABLE = frozenset({"route", "preset", "user_config", "router_settings_override", "litellm_params"})
"""OpenRouter's, where the upstream alone knows which models they mean; LiteLLM's, which can give a name another one."""
_AROUND = frozenset({"extra_body", "provideroptions", "provider_options", "gateway", "plugins", "orq"})
_ROUTING = _FALLBACKS | _UNREADABLE | _AROUND
_ROUTING_HEADERS = ("x-portkey-config", "helicone-fallbacks", "x-litellm-model")
_LONGEST = 10_000


async def named_model(body: bytes) -> str:
    """The model that a request names; "" where that cannot be read, because what is no request is relayed as it is."""
    return (await _in_thread_if_large(body, False))[0]


async def allowed_names(body: bytes, headers: Collection[str]) -> tuple[str, ...]:
    """The model that a request names, and all others that may answer in its place at some upstream; "" for what cannot
    be read, also because an upstream that does not tell capitals from small letters might read another one.
    `headers`: the names of those that come with it."""
    names = await _in_thread_if_large(body, True)
    return (*names, "") if any(name in headers for name in _ROUTING_HEADERS) else names


async def _in_thread_if_large(body: bytes, strictly: bool) -> tuple[str, ...]:
    return _models(body, strictly) if len(body) <= _LARGE_BYTES else await asyncio.to_thread(_models, body, strictly)


def _models(body: bytes, strictly: bool) -> tuple[str, ...]:
    try:
        if body.count(b":") > _MANY_KEYS:
            check_size(body)
        spans = members(body)
        value = member(body, spans, "model")
        if strictly and sum(name.casefold() == "model" for name in spans) > 1:
            value = None
        model = value if isinstance(value, str) else ""
        if not strictly:
            return (model,)
        fields: dict[str, object] = {}
        for name, (start, end) in spans.items():
            if name.casefold() == "tools":
                fields[name] = _served(decoded(body[start:end]))
            if name.casefold() in _ROUTING and body[start:end] != b"null":
                fields[name] = decoded(body[start : start + _LONGEST][: end - start])
                if fields[name] is None:
                    return model, ""
        parts = model.split(",") if "," in model else ()  # LiteLLM asks all in such a list
        return (model, *parts, *_others(fields))
    except (UnreadableError, TooManyError, RecursionError):
        return ("",)


def _served(tools: object) -> list[Mapping[str, object]]:
    """The tools that the provider runs itself, with a model of their own: an advisor, the making of images."""
    entries = [tool for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    return [
        tool
        for tool in entries
        if tool.get("type") not in ("function", "custom") and not tool.keys() & {"function", "input_schema"}
    ]


def _others(value: object) -> Iterator[str]:
    """The models that are named in an object, beside its `messages`; "" for what cannot be read."""
    if isinstance(value, list):
        for each in value:
            yield from _others(each)
    for key, each in value.items() if isinstance(value, Mapping) else ():
        name = key.casefold()
        if name in _FALLBACKS or name == "model":
            yield from _names(each)
        elif name in _UNREADABLE and each is not None:
            yield ""
        elif name != "messages":
            yield from _others(each)


def _names(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _names(each)
    elif isinstance(value, Mapping) and any(key.casefold() == "model" for key in value):
        yield from _others(value)
    elif isinstance(value, Mapping):  # by the name of the model that they stand in for
        for key, each in value.items():
            yield key
            yield from _names(each)
    elif value is not None:
        yield ""


# --- the head: who it is, how it wants to be served, and the headers that go upstream ---

MODES: tuple[Mode, ...] = ("on", "observe", "off")
"""From the mode that does most to the one that does least."""
_NUMBER = re.compile(r"[0-9]{1,18}")
_FRAMING = frozenset({b"content-length"})
_KEY_SHAPE, _PUNCTUATION = re.compile(KEY_SHAPE.pattern.encode()), re.compile("[^a-z0-9]")


_WISHES = ("x-narrows", "x-narrows-preset", "x-narrows-aim", "x-narrows-context-tokens", "x-narrows-keep")
_NO_WISHES, _MODES = RequestOptions("on"), {str(mode): mode for mode in MODES}


def read_head(request: web.BaseRequest, settings: Settings, secret: bytes) -> RequestHead:
    connection = request.protocol if isinstance(request.protocol, Connection) else None
    before = connection.head if connection is not None else None
    lines = tuple(line for line in request.raw_headers if line[0].lower() != b"content-length")
    access: Identity | None = request.get(IDENTITY)
    if before is not None and before.lines == lines and before.settings is settings and access in (None, before.access):
        return before
    access = who(request, settings, secret)
    asks = _wishes(request, settings, access.key)
    conversation = request.headers.get("x-narrows-conversation")
    if conversation is not None and not is_name(conversation):
        message = "x-narrows-conversation must have 1 to 200 printable characters."
        raise ApiError(400, message, "bad_header", "x-narrows-conversation")
    forwarded = forwarded_headers(request, lines, settings, _FRAMING)
    readable_encodings(forwarded)
    head = RequestHead(
        lines=lines,
        wishes=asks,
        conversation=conversation or session_of(request.headers),
        access=access,
        settings=settings,
        proof=Proof(auth_of(request, has_key=access.key is not None), is_plain_key(request)),
        forwarded=forwarded,
    )
    if connection is not None:
        connection.head = head
    return head


def forwarded_headers(
    request: web.BaseRequest, lines: Iterable[tuple[bytes, bytes]], settings: Settings, but: Collection[bytes] = ()
) -> CIMultiDict[str]:
    """The headers that go upstream, without those in `but`: no key of this gateway, and no name of a person."""
    if settings.auth != "passthrough":
        lines = [line for line in lines if not _KEY_SHAPE.search(line[1])]
    if IDENTITY in request:
        but = {*but, *(_PUNCTUATION.sub("-", name.lower()).encode() for name in settings.tenant_headers)}
    return request_headers(lines, but)


def _wishes(request: web.BaseRequest, settings: Settings, key: KeyRow | None) -> RequestOptions:
    headers, least = request.headers, (key and key.mode) or "on"
    if not any(name in headers for name in _WISHES):
        return _NO_WISHES if least == "on" else RequestOptions(least)
    values = [value.strip().lower() for value in headers.getall("x-narrows", ())]
    modes = [_MODES[value] for value in values if value in _MODES]
    if len(modes) != len(values):
        raise ApiError(400, "The header x-narrows must be on, observe or off.", "bad_header", "x-narrows")
    presets, allowed = headers.getall("x-narrows-preset", ()), settings.request_presets
    if presets and key is not None:
        allowed += tuple(name for name in key.presets if name in settings.all_presets())
    preset = presets[0].strip() if presets else ""
    if len(presets) > 1 or (presets and preset not in allowed):
        may = f"must be one of {', '.join(allowed)}" if allowed else "may not be sent: `request_presets` allows none"
        raise ApiError(400, f"The header x-narrows-preset {may}.", "bad_header", "x-narrows-preset")
    aims = [value.strip().lower() for value in headers.getall("x-narrows-aim", ())]
    sizes = [value.strip() for value in headers.getall("x-narrows-context-tokens", ())]
    for name, values in (("x-narrows-aim", aims), ("x-narrows-context-tokens", sizes)):
        if values and not settings.request_aim:
            raise ApiError(400, f"The header {name} is not allowed: `request_aim` is off.", "bad_header", name)
    aim = next((each for each in get_args(Aim) if [each] == aims), None)
    if aims and aim is None:
        raise ApiError(400, "The header x-narrows-aim must be bill, context or steady.", "bad_header", "x-narrows-aim")
    size = int(sizes[0]) if sizes and _NUMBER.fullmatch(sizes[0]) else 0
    if sizes and (len(sizes) > 1 or not FEWEST_TOKENS <= size <= MOST):
        message = f"The header x-narrows-context-tokens must be one number, {FEWEST_TOKENS:,} or more."
        raise ApiError(400, message, "bad_header", "x-narrows-context-tokens")
    keep = _patterns(headers.getall("x-narrows-keep", ()))
    return RequestOptions(max([least, *modes], key=MODES.index), preset, aim, size or None, keep=keep)


def _patterns(lines: Sequence[str]) -> Patterns:
    try:
        return patterns_of(pattern for line in lines for pattern in line.split(",") if pattern.strip())
    except ValueError as error:
        raise ApiError(400, f"The header x-narrows-keep: {error}.", "bad_header", "x-narrows-keep") from error


# --- names that clients give their conversations in headers of their own ---
# Laws
#   A name that is given to Narrows, as in `x-narrows-conversation`, counts before these.
#   A header only names. Histories that share a name stay apart, because each is recognized by its own messages.

LONGEST = 200
SESSIONS: tuple[tuple[str, str | None], ...] = (
    ("x-claude-code-session-id", "x-claude-code-agent-id"),  # Claude Code
    ("x-openwebui-chat-id", None),  # Open WebUI
    ("x-session-affinity", None),  # opencode
)
"""The header that names a session, and the one that names an agent within it, which has a history of its own."""


def is_name(value: str) -> bool:
    return 0 < len(value) <= LONGEST and value.isprintable()


def session_of(headers: Mapping[str, str]) -> str | None:
    """The name that a client in this table gives its conversation; values that cannot be names are ignored."""
    for header, within in SESSIONS:
        name = headers.get(header)
        if name is None or not is_name(name):
            continue
        agent = headers.get(within) if within else None
        return f"{name}:{agent}" if agent and is_name(agent) else name
    return None
