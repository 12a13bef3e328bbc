"""What a key of this gateway may ask for: models, and paths of an account that all keys share."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from policies.dialects import DIALECTS
from proxy.errors import ApiError
from proxy.identity.who import Identity

_REFUSED: Mapping[str, str] = {"x-should-retry": "false"}
_APIS = [api.http for api in DIALECTS.values()]
_SHARED_PATHS = tuple(
    (method, re.compile(pattern).fullmatch)
    for method, pattern in (
        ("GET", r"/models(/[\w.:@%-]+)*"),
        ("HEAD", r"/models"),
        ("POST", r"/(embeddings|completions|moderations|rerank|score|tokenize|detokenize)"),
        ("POST", r"/(audio/(speech|transcriptions|translations)|images/(generations|edits|variations))"),
        *(("POST", re.escape(api.compact_path)) for api in _APIS if api.compact_path),
        *(("*", api.stored_path) for api in _APIS if api.stored_path),
    )
)
"""What is relayed for keys that share an account: what stores nothing there, and what is named by a secret id."""


def may_ask(identity: Identity, model: str) -> bool:
    """Whether the key may ask this model."""
    patterns = identity.key.models if identity.key is not None else ()
    return not patterns or (bool(model) and any(fnmatchcase(model, pattern) for pattern in patterns))


def check_model(identity: Identity, *models: str) -> None:
    """Raises ApiError where the key may not ask one of these models; "" for one that could not be read."""
    refused = [model for model in models if not may_ask(identity, model)]
    if identity.key is None or not refused:
        return
    names, what_to_do = ", ".join(identity.key.models), "" if all(refused) else "; name one of them"
    message = f"This key may use no other model than {names}{what_to_do}."
    raise ApiError(403, message, "model_not_allowed", "model", _REFUSED)


def check_path(method: str, rest: str) -> None:
    """Raises ApiError for what shows or changes what others have in an account that all keys share. `rest`: the target,
    after /v1."""
    path = rest.partition("?")[0]
    if any(fullmatch(path) for each, fullmatch in _SHARED_PATHS if each in (method, "*")):
        return
    message = (
        "All keys of this gateway share one account at this upstream, so they may not use what is stored there (files, "
        "batches, lists); send a credential of the upstream itself."
    )
    raise ApiError(403, message, "path_not_allowed", headers=_REFUSED)
