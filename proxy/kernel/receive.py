"""The first stage: what a client sends becomes a request that can be planned, or one that is relayed."""

import asyncio
from collections.abc import Collection, Iterator, Mapping

from policies.dialects.common import decoded, member
from policies.dialects.splitting import TooManyError, check_size
from policies.keep import joined
from policies.model.rawjson import UnreadableError, members
from proxy.config import Settings
from proxy.config.routes import spoken
from proxy.config.rules import first_fitting
from proxy.errors import ApiError
from proxy.identity.permissions import check_model, check_path
from proxy.identity.who import Identity, who
from proxy.kernel.addons import Exchange, RelayedRequest
from proxy.kernel.head import MODES, RequestHead
from proxy.kernel.parts import KernelParts
from proxy.kernel.wire.downstream import Upload, read_head
from proxy.requests import ClientRequest, Proof, RequestOptions
from proxy.upstreams.model_lists import Reach


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
    """The request, how it is to be served and by which upstream. Raises ApiError."""
    settings, upstreams, route, deployment = parts.settings, parts.upstreams, exchange.route, exchange.deployment
    access, named, others = head.access, "", list[str]()
    has_models = access.key is not None and bool(access.key.models)
    is_ruled = any(rule.model for rule in settings.rules)
    if deployment or has_models or is_ruled or upstreams.needs_model(route.dialect):
        named, *others = await allowed_names(body, head.forwarded) if has_models else (await named_model(body),)
    model = deployment or named
    options = options_of(head.wishes, settings, route.dialect, access, model)
    if has_models:
        check_model(access, model, *others)
    allowed = access.key.upstreams if access.key is not None else ()
    spends = _spends(parts, exchange)
    upstream = upstreams.choose(route.dialect, model or None, allowed, options.upstream, spends=spends)
    if deployment and not upstream.has_deployments:
        check_named(deployment, named)
    is_accepted = exchange.visit.is_accepted(access.owner)
    return ClientRequest(
        dialect=route.dialect,
        body=body,
        sender=access,
        conversation=head.conversation,
        options=options,
        proof=Proof(head.auth, head.is_plain_key),
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
    )


async def _receive_relayed(parts: KernelParts, exchange: Exchange) -> None:
    """Find where a request goes that is relayed. Raises ApiError."""
    request, settings = exchange.request, parts.settings
    upload = Upload(request, settings.body_timeout) if request.body_exists else None
    access = who(request, settings, parts.secret)
    reach = Reach(parts.upstreams, settings.rules, access, spoken(request.headers), _spends(parts, exchange))
    if lists := reach.lists(request.method, exchange.rest):
        exchange.relayed = RelayedRequest(reach, upload, lists)
        return
    try:
        body, named = await _body_and_model(parts, exchange, access, upload)
    except ApiError as error:
        raise (upload and upload.fault) or error from None
    finally:
        exchange.received = upload.size if upload else 0
    exchange.model, model = named, exchange.deployment or named
    upstream = reach.relayed(exchange.route.dialect, model, exchange.rest)
    exchange.upstream = upstream.name
    if access.key is not None and upstream.row.has_key:
        check_path(request.method, exchange.rest)
    if exchange.deployment and not upstream.has_deployments and named:
        check_named(exchange.deployment, named)
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
    depends = parts.upstreams.needs_model(dialect) and not deployment
    depends = depends or any(rule.upstream and rule.model for rule in settings.rules)
    depends = depends or exchange.listener is not None
    is_json = "json" in exchange.request.headers.get("Content-Type", "").lower()
    if upload is None or not (has_models or ((depends or deployment) and is_json)):
        return upload, ""
    raw, body = await upload.whole(settings.body_limit)
    if not has_models:
        return raw, await named_model(body)
    named, *others = await allowed_names(body, exchange.request.headers)
    check_model(access, named, *others)
    return raw, named


def _spends(parts: KernelParts, exchange: Exchange) -> bool:
    """Whether a key of the gateway's own may go with the request: for holders of keys of this gateway; where there are
    none, for this machine."""
    access = exchange.access
    if not parts.upstreams.has_keys or (access is not None and access.key is not None):
        return True
    return parts.settings.auth == "passthrough" and who(exchange.request, parts.settings, parts.secret).is_here


# --- which models a request names, before anything else is read of it ---

_MANY_KEYS = 20_000
"""Colons in a body that may be as many keys; finding each member takes some 0.5 microseconds."""
_LARGE_BYTES = 2**22
"""A larger body is searched for its model in a thread, so that nobody else waits."""


def check_named(deployment: str, named: str) -> None:
    """Raises ApiError where an upstream that knows no deployments would be asked another model than the path says."""
    if named != deployment:
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
"""Objects in which these fields may stand."""
_ROUTING = _FALLBACKS | _UNREADABLE | _AROUND
_ROUTING_HEADERS = ("x-portkey-config", "helicone-fallbacks", "x-litellm-model")
_LONGEST = 10_000
"""Bytes of such a field that are read."""


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
    """The models in the value of such a field."""
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
