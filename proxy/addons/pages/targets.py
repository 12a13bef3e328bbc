"""What the target of a request for a conversation names, and the methods that it takes."""

from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from proxy.errors import ApiError
from proxy.memory import conversation_id

CONVERSATIONS = "/narrows/conversations"
READ = ("GET", "HEAD")
_QUERY_FIELDS = 8
"""Parameters of a query, at most."""


def parse_target(target: str, also: Sequence[str] = ()) -> tuple[str | None, str]:
    """The conversation that a raw target names, and the name of its page; None for all conversations of a tenant.

    The id is one segment of the path, percent-encoded once, or, as some ids cannot be in a path, the parameter `id`.
    `also` are other parameters that may stand there. Raises ApiError.
    """
    path, question, query = target.partition("?")
    if path != CONVERSATIONS and not path.startswith(CONVERSATIONS + "/"):
        raise no_page()
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="surrogatepass", max_num_fields=_QUERY_FIELDS)
        places = [unquote(part, errors="surrogatepass") for part in path.removeprefix(CONVERSATIONS).split("/")[1:]]
    except ValueError as error:
        raise ApiError(400, "The id must be UTF-8, percent-encoded.", "bad_conversation", "id") from error
    fields = [(name, value) for name, value in fields if name not in also]
    if (
        question and [name for name, _ in fields] != ["id"] and (fields or not also or not query)
    ):  # a misspelt one must not widen what is deleted
        raise ApiError(400, "This page takes only the parameter `id`.", "bad_parameter")
    if not fields and not places:
        return None, ""
    name, *rest = [fields[0][1], *places] if fields else places
    if not name:
        raise ApiError(400, "The id of the conversation is empty.", "bad_conversation", "id")
    if "" in rest or rest[2:] or (rest[1:] and rest[0] != "requests"):
        raise no_page()
    return conversation_id(name), "/".join(rest)


def allow_only(request: web.BaseRequest, methods: Sequence[str]) -> None:
    """Raises ApiError where the page is requested with another method."""
    if request.method not in methods:
        allow = ", ".join(methods)
        message = f"This page takes only {allow}."
        raise ApiError(405, message, "method_not_allowed", headers={"Allow": allow})


def no_page() -> ApiError:
    return ApiError(404, "A conversation has no such page.", "not_found")
