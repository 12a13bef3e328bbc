"""The usage of a stream, asked for in the place of a client that has not, and taken out of the stream again.

Laws
  The same request always gets the same bytes; nothing but the option is added.
  The client receives every other byte as it came: the chunk that brings usage alone goes, others lose that member.
"""

from policies.dialects.common import list_at, member
from policies.dialects.events import framed, read_event
from policies.model.rawjson import UnreadableError, members, spliced

OPTION = b"stream_options"
_USAGE_CHUNK = frozenset(
    {"id", "object", "created", "model", "service_tier", "system_fingerprint", "choices", "usage"},
)
"""Members of a chunk that brings nothing but usage."""


def asking_for_usage(body: bytes) -> bytes | None:
    """The request, with its usage asked for; None where it asks itself, wants no stream, or cannot be read."""
    try:
        spans = members(body)
        start, end = spans.get("stream_options", (0, 0))
        if member(body, spans, "stream") is not True:
            return None
        if not end:
            at = body.index(b"{") + 1
            return spliced(body, [((at, at), b'"stream_options":{"include_usage":true},')])
        if body[start:end] == b"null":
            return spliced(body, [((start, end), b'{"include_usage":true}')])
        options = members(body, start, end)
    except UnreadableError:
        return None
    wish = options.get("include_usage")
    if wish is None:
        return spliced(body, [((start + 1, start + 1), b'"include_usage":true' + (b"," if options else b""))])
    return spliced(body, [(wish, b"true")]) if body[slice(*wish)] in (b"false", b"null") else None


def without_usage(event: bytes) -> bytes:
    """An event as a client gets it that has not asked for usage; empty where it brought nothing else."""
    content = read_event(event) if b'"usage"' in event else None
    if content is None or "usage" not in content:
        return event
    if content["usage"] is not None and not list_at(content, "choices") and content.keys() <= _USAGE_CHUNK:
        return b""
    start = event.index(b"{")
    text = event[start : event.rindex(b"}") + 1]
    try:
        value, end = members(text)["usage"]
        name = text.rfind(b'"usage"', 0, value)
        is_found = name >= 0 and text[name + len(b'"usage"') : value].strip() == b":"
    except UnreadableError:  # several lines of data
        is_found = False
    if not is_found:  # or an escaped name
        return framed({name: each for name, each in content.items() if name != "usage"})
    before, behind = text[:name].rstrip(), text[end:].lstrip()
    if before.endswith(b","):
        name = len(before) - 1
    elif behind.startswith(b","):
        end = len(text) - len(behind) + 1
    return event[:start] + text[:name] + text[end:] + event[start + len(text) :]
