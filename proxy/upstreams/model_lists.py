"""Which upstream serves a model for a client, and the models of all upstreams that it may use, as one list.

Laws
  A model is listed where a request for it would go: of the upstream that serves it, and once.
  A client's credential is shown to one host alone: that of the first upstream that wants the client's own.
  Upstreams are asked at once and for a bounded time; one that does not answer is left out.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from policies.dialects import DIALECTS
from policies.dialects.dialect import Model
from proxy.config.routes import VERSIONS
from proxy.config.rules import Rule
from proxy.errors import ApiError
from proxy.identity.credential import auth_of
from proxy.identity.who import Identity, check_model, may_ask
from proxy.upstreams.table import Upstreams, row_for
from proxy.upstreams.upstream import Upstream, document, models_in

_PATH = "/models"
_SECONDS = 2.0
"""How long all upstreams have: Claude Code waits 3 seconds for its list."""
_MOST_BYTES, _MOST_MODELS = 2**22, 5_000
"""Of one upstream's list."""


def model_in(path: str) -> str:
    """The model that is asked about by this target, after /v1; "" for none."""
    way, _, _ = path.partition("?")
    return unquote(way.removeprefix(f"{_PATH}/")) if way.startswith(f"{_PATH}/") else ""


class Reach(NamedTuple):
    """The upstreams that one client may reach. `apis`: those that its request may be in; `spends`: whether a key of the
    gateway's own may go with it."""

    upstreams: Upstreams
    rules: Sequence[Rule]
    access: Identity
    apis: Sequence[str]
    spends: bool

    def upstream_of(self, api: str, model: str) -> Upstream:
        """Where a request in this API to this model goes; "" where no model is known. Raises ApiError."""
        row = row_for(self.upstreams.rows, self.rules, self.access, api, model, spends=self.spends)
        return self.upstreams.by_name[row.name]

    def relayed(self, api: str, model: str, rest: str) -> Upstream:
        """Where a request that is relayed goes. `model`: the one that it names; `rest`: its target, after /v1, which
        may be about a model. Raises ApiError."""
        if about := model_in(rest):
            check_model(self.access, about)
            served = (api for api in self.apis if self._serves(api, about) is not None)
            return self.upstream_of(next(served, self.apis[0]), about)
        return self.upstream_of(api, model)

    def lists(self, method: str, rest: str) -> Sequence[Upstream]:
        """The upstreams whose lists make the client's; none where it asks something else, or gets one list as it is."""
        if method != "GET" or rest.partition("?")[0] != _PATH:
            return ()
        there = [each for each in self.upstreams if self._may_use(each)]
        has_models = self.access.key is not None and bool(self.access.key.models)
        is_relayed = len(there) == 1 and there[0].row.fits(self.apis[0], None) and not has_models
        return () if is_relayed else there

    async def models(self, upstreams: Sequence[Upstream], request: web.BaseRequest, rest: str) -> bytes:
        """The list of the models of these upstreams, in the API of the client. Raises ApiError where none answers."""
        form = DIALECTS[self.apis[0]].http.models
        parameters = {name: value for name, value in parse_qsl(rest.partition("?")[2]) if name not in form.paging}
        query = "&".join(filter(None, (urlencode(parameters), form.whole)))
        target = f"{_PATH}?{query}" if query else _PATH
        heads = _heads(upstreams, auth_of(request, has_key=self.access.key is not None))
        answers = await asyncio.gather(*(_ask(each, target, head) for each, head in zip(upstreams, heads, strict=True)))
        lists = {each.name: models for each, models in zip(upstreams, answers, strict=True) if isinstance(models, list)}
        if not lists:
            raise _no_list(upstreams, answers)
        return await asyncio.to_thread(self._merged, lists, request.query)

    def _merged(self, lists: Mapping[str, list[Model]], query: Mapping[str, str]) -> bytes:
        merged: dict[str, Model] = {}
        form = DIALECTS[self.apis[0]].http.models
        for name, models in lists.items():
            for model in models:
                id_ = str(model["id"])
                if id_ not in merged and may_ask(self.access, id_) and self._goes_to(name, id_):
                    merged[id_] = {**form.entry(id_, name), **model}
        return msgspec.json.encode(form.page(list(merged.values()), query))

    def _goes_to(self, name: str, model: str) -> bool:
        served = (self._serves(api, model) for api in self.apis)
        return any(upstream is not None and upstream.name == name for upstream in served)

    def _serves(self, api: str, model: str) -> Upstream | None:
        try:
            return self.upstream_of(api, model)
        except ApiError:
            return None

    def _may_use(self, upstream: Upstream) -> bool:
        row = upstream.row
        allowed = self.access.key.upstreams if self.access.key is not None else ()
        is_reached = (not allowed or row.name in allowed) and (self.spends or not row.has_key)
        return is_reached and any(row.fits(api, None) for api in self.apis)


def _heads(upstreams: Iterable[Upstream], auth: Mapping[str, str]) -> Iterable[CIMultiDict[str]]:
    """The headers for each of these: with the credential of the client for one host alone."""
    bare = {name: value for name, value in auth.items() if name in VERSIONS}
    origin: str | None = None
    for upstream in upstreams:
        if origin is None and not upstream.row.has_key:
            origin = upstream.outbound.origin
        is_own = upstream.outbound.origin == origin and not upstream.row.has_key
        yield CIMultiDict({"Accept": "application/json", **(auth if is_own else bare)})


async def _ask(upstream: Upstream, target: str, headers: CIMultiDict[str]) -> list[Model] | ApiError | int:
    """The models of one upstream; what went wrong, or the status, where it lists none."""
    try:
        async with asyncio.timeout(_SECONDS):
            status, content = await document(upstream, "GET", target, headers, most=_MOST_BYTES)
        if status != 200:
            return status
        models = models_in(content)[:_MOST_MODELS]
        return [each for each in models if isinstance(each, dict) and isinstance(each.get("id"), str)]
    except TimeoutError:
        message = f"The upstream {upstream.host} did not list its models in {_SECONDS:g} s."
        return ApiError(504, message, "upstream_timeout")
    except ApiError as error:
        return error
    except (ValueError, RecursionError):
        return ApiError(502, f"The upstream {upstream.host} sent no list of models.", "upstream_garbled")


def _no_list(upstreams: Sequence[Upstream], answers: Sequence[list[Model] | ApiError | int]) -> ApiError:
    first = answers[0]
    if isinstance(first, ApiError):
        return first
    status = first if isinstance(first, int) and 400 <= first < 600 else 502
    message = f"No upstream lists its models; the first, {upstreams[0].name}, answered {first}."
    return ApiError(status, message, "no_models")
