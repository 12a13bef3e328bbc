"""The first stage: what a client sends becomes a request that can be planned, or one that is relayed."""

from policies.keep import joined
from proxy.config import Settings
from proxy.config.routes import spoken
from proxy.config.rules import first_fitting
from proxy.errors import ApiError
from proxy.identity.permissions import check_model, check_path
from proxy.identity.who import Identity, who
from proxy.kernel.exchange import Exchange, RelayedRequest
from proxy.kernel.head import MODES, RequestHead, RequestOptions
from proxy.kernel.models import allowed_names, check_named, named_model
from proxy.kernel.parts import KernelParts
from proxy.kernel.wire.downstream import Upload
from proxy.kernel.wire.listener import read_head
from proxy.requests import ClientRequest
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
    exchange.tenant, exchange.upstream = client_request.tenant, client_request.upstream


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
        tenant=access.tenant,
        conversation=head.conversation,
        mode=options.mode,
        credential=access.credential,
        owner=access.owner,
        key=access.key.name if access.key is not None else "",
        auth=head.auth,
        is_plain_key=head.is_plain_key,
        implied=route.implied,
        only_counts=route.kind == "count",
        preset=options.preset,
        aim=options.aim,
        context_tokens=options.context_tokens,
        keep=options.keep,
        stale=options.stale,
        record=options.record,
        is_accepted=is_accepted,
        upstream=upstream.name,
        model=model,
        id=exchange.id,
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
