"""Which API is spoken where, and what Narrows does there: the one table of paths.

Laws
  What the table does not name is relayed: nothing is compacted by accident.
  An error has the form of the API that is spoken there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from multidict import CIMultiDict

from policies.dialects import DIALECTS

Kind = Literal["chat", "count", "relay", "compress"]


@dataclass(frozen=True, slots=True)
class Route:
    """The API that is spoken, and what is done: `chat` is compacted, `count` planned as if it were sent, `compress`
    answered here. `implied` is a JSON member that a body to be counted cannot have, though the later request has."""

    dialect: str
    kind: Kind = "relay"
    implied: bytes = b""


CHATS: Mapping[str, str] = {f"/v1{api.http.path}": name for name, api in DIALECTS.items()}
"""The paths of what is compacted, and the APIs that are spoken there."""
ROUTES: Mapping[str, Route] = {
    **{path: Route(name, "chat") for path, name in CHATS.items()},
    **{
        f"/v1{api.http.counting_path}": Route(name, "count", api.http.counting_implies)
        for name, api in DIALECTS.items()
        if api.http.counting_path
    },
}
"""By the path that is posted to. What is below one of these paths belongs to the same API."""
COMPRESS, RETRIEVE = "/v1/compress", "/v1/retrieve/"
"""The paths of the compress API, where it is served; elsewhere they are relayed as any other."""
_OTHERS = ("/v1/models", "/v1/embeddings", "/v1/completions")
_HAS_V1 = "let base_url (OPENAI_BASE_URL) end in /v1 and in nothing else."
_ADDS_V1 = "leave /v1 out of base_url (ANTHROPIC_BASE_URL), as this client adds it."


def _mistakes() -> Iterator[tuple[str, tuple[str, str]]]:
    """Paths at which clients ask that were given a wrong base_url, each with the one that is meant, and the remedy."""
    for path in (*ROUTES, *_OTHERS):
        bare = path.removeprefix("/v1")
        yield bare, (path, _HAS_V1)
        yield f"/v1{path}", (path, _remedy(ROUTES[path].dialect) if path in ROUTES else _HAS_V1)
        for chat, dialect in CHATS.items():  # a base_url that names what is asked, too
            yield f"{chat}{bare}", (path, _HAS_V1)
            yield f"{chat}{path}", (path, _remedy(dialect))


def _remedy(dialect: str) -> str:
    return _ADDS_V1 if DIALECTS[dialect].http.adds_version else _HAS_V1


MISTAKES: Mapping[str, tuple[str, str]] = {wrong: meant for wrong, meant in _mistakes() if wrong not in ROUTES}


def spoken(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The APIs whose requests may come with these headers; their bodies tell which it is."""
    own = tuple(name for name, api in DIALECTS.items() if any(each in headers for each in api.http.version))
    return own or tuple(name for name, api in DIALECTS.items() if not api.http.version)


# --- Headers by which clients say who they are and how a body is to be read, over all APIs.


def _all(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))


_APIS = [api.http for api in DIALECTS.values()]
CREDENTIALS = _all(api.credentials for api in _APIS)
"""Where a credential may stand."""
ACCOUNTS = _all(api.accounts for api in _APIS)
VERSIONS: Mapping[str, str] = {name: value for api in _APIS for name, value in api.version.items()}
"""Headers that an API wants with each request, and the values that are sent where no client says one."""
BETAS = _all(api.betas for api in _APIS)
SIGN_INS = tuple(dict.fromkeys(api.sign_in_beta for api in _APIS if api.sign_in_beta[0]))
"""Headers in which a word has to stand where a person has signed in, and how that word begins."""


def words_in(values: Iterable[str]) -> list[str]:
    """The words of a header with commas between them, which may come several times."""
    return [word for value in values for each in value.split(",") if (word := each.strip())]


def drop_sign_ins(headers: CIMultiDict[str]) -> None:
    """Take the words out that say that a person has signed in; words of several such headers come in one."""
    for name, start in SIGN_INS:
        if words := [word for word in words_in(headers.popall(name, ())) if not word.startswith(start)]:
            headers[name] = ",".join(words)
