"""Headers by which clients say who they are and how a body is to be read, over all APIs."""

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

from policies.dialects import DIALECTS


def _all(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Each name once, in the order of the APIs."""
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
