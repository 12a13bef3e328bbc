"""The codes of the errors that Narrows itself returns: when each comes, and what it means."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from tests.docs.reference.markdown import items

INTRODUCTION = """\
# Errors

The `code` of an error that Narrows itself returns, in the form of the client's API. Its message says what to do. Errors
of the upstream pass as they came, except where a prompt was
[too long](../../kernel/README.md#prompts-that-are-too-long) and a shorter one succeeded. Errors 429 and 503 say in
`Retry-After` when to try again (`summarizer_REASON` does not). If something fails after the head of a reply was sent,
the error comes in the stream and Narrows closes the connection; it never invents a `finish_reason` or `[DONE]`."""
CODES: Sequence[tuple[str, str, str]] = (
    ("400", "bad_body", "the body is not framed or written as it says"),
    ("400", "bad_configuration", "a reload was asked for, and the settings cannot work; the old ones stay"),
    ("400", "bad_conversation", "the id of a conversation in the path of a page cannot be read"),
    ("400", "bad_encoding", "the body is not encoded as `Content-Encoding` says"),
    ("400", "bad_header", "a [header](headers.md) has a value that it may not have, or characters that HTTP forbids"),
    ("400", "bad_parameter", "a parameter of a page below `/narrows` cannot be read"),
    ("400", "bad_target", "the request target is not what HTTP or Narrows allows"),
    ("400", "model_mismatch", "the path names another deployment than the body's model"),
    ("400", "not_http", "this is no request of HTTP/1.0 or HTTP/1.1"),
    ("400", "stale_summary", 'with `summary_stale = "fail"`: the summary of this history may no longer be used'),
    ("400", "too_many", "the body for a page holds more items than Narrows works on"),
    (
        "401",
        "invalid_api_key",
        "the [key](../../addons/access/README.md) is missing, mistyped, unknown, revoked or expired; or another "
        "machine asks for an upstream whose key serves only this one",
    ),
    ("403", "forbidden", "a page, `/metrics` or a summary is not for this caller, or no credential may be used for it"),
    ("403", "model_not_allowed", "this key may not use this model"),
    ("403", "path_not_allowed", "this path shows or changes what others have in the account that keys share"),
    ("404", "no_admin_token", "nobody can log in: `admin_token` is not set"),
    ("404", "no_artifacts", "no outputs are stored: `artifacts` is not set, or `mode` is `off`"),
    ("404", "no_conversations", "conversations are not stored: `mode` is `off`"),
    ("404", "no_history", "no log is stored: `history` is not set, or `mode` is `off`"),
    ("404", "no_originals", "no originals are stored: `originals` is not set, or `mode` is `off`"),
    ("404", "no_summaries", "`summaries` is off"),
    ("404", "no_upstream", "no [upstream](../../upstreams/README.md) serves this model in this API"),
    ("404", "not_found", "there is no such page, or nothing is stored (missing and somebody else's look alike)"),
    ("404", "not_in_log", "the log does not hold this request, or no longer all of it; the message says what it has"),
    (
        "404",
        "wrong_base_url",
        "the client's `base_url` lacks `/v1`, has it where the client adds it, or has too much behind it",
    ),
    ("4xx, 5xx", "no_models", "no upstream lists its models; the status is that of the first one"),
    ("405", "method_not_allowed", "the page takes other methods, or Narrows does not relay this one"),
    ("405", "not_a_proxy", "`CONNECT`: Narrows is no forward proxy"),
    ("408", "body_timeout", "the body was too slow, or the client silent (`body_timeout`)"),
    ("409", "ambiguous_reference", "several conversations have this reference; name one with `conversation`"),
    ("409", "log_damaged", "the log yields other bytes than were sent"),
    ("413", "body_too_large", "the body is larger than `body_limit`"),
    ("415", "unknown_encoding", "Narrows does not read this `Content-Encoding`"),
    ("417", "bad_expectation", "`Expect` may only be `100-continue`"),
    ("426, 501", "no_websockets", "use POST with `stream`; on other paths connect to the upstream"),
    ("429", "client_limit", "this client has [too much in flight](../../kernel/wire/README.md#limits)"),
    ("429", "insufficient_quota", "the key has used up [its dollars](../../addons/limits/README.md) of the day"),
    ("429", "rate_limit_exceeded", "the key has used what it may in a minute, or has too much in flight"),
    ("429", "too_many_tokens", "too many wrong tokens were posted to the login"),
    ("429, 502, 503, 504", "summarizer_REASON", "no summary for people could be made; `budget` (429): it is used up"),
    ("431", "head_too_large", "a line of the head has over 16 KiB, the head over 128 KiB, or over 256 headers"),
    ("500", "narrows_failed", "Narrows failed on this request; its log says why"),
    ("502", "proxy_refused", "the HTTP proxy of the environment refused to connect"),
    ("502", "proxy_unreachable", "the HTTP proxy of the environment does not answer"),
    ("502", "summary_rejected", "a summary for people was written, and may not be used"),
    ("502", "upstream_certificate", "the upstream's certificate is not trusted"),
    ("502", "upstream_cut", "the upstream closed the connection before its reply was whole"),
    ("502", "upstream_garbled", "the upstream sent something that is no HTTP, or no list of models"),
    ("502", "upstream_tls", "the upstream does not speak TLS here"),
    ("502", "upstream_unknown", "the upstream's name has no address"),
    ("502", "upstream_unreachable", "the upstream does not answer"),
    ("502 and up", "upstream_refused", "the upstream refused to continue after the head of the reply was sent"),
    ("502 and up", "upstream_STATUS", "the same, where it answered a later round with this status"),
    ("503", "keys_unavailable", "the store does not answer, and this key is not known without it"),
    ("503", "overloaded", "all clients together have [too much in flight](../../kernel/wire/README.md#limits)"),
    ("503", "planning_shed", "the prompt is too long for its model, and there was no time to shorten it"),
    ("503", "shutting_down", "Narrows is shutting down; try again"),
    ("503", "store_trouble", "a page needs the store, which is in trouble"),
    ("503", "upstream_paused", "the upstream could not be connected to for a while"),
    ("504", "upstream_timeout", "the upstream accepted no connection, or was silent for `read_timeout`"),
)
"""Status, code and meaning."""


def page() -> str:
    """The page: the codes below their statuses."""
    parts = [INTRODUCTION]
    for status, rows in groupby(CODES, itemgetter(0)):
        parts.append(f"## {status}")
        parts.append(items(f"`{code}`: {meaning}" for _, code, meaning in rows))
    return "\n\n".join(parts) + "\n"
