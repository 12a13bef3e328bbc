"""The headers of Narrows: what a client may send, and what replies say."""

from collections.abc import Sequence

from tests.docs.reference.markdown import items

REQUEST: Sequence[tuple[str, str]] = (
    ("x-narrows: off", "relay this request untouched"),
    ("x-narrows: observe", "relay this request untouched, and report in the reply what would have been saved"),
    (
        "x-narrows-conversation: ID",
        "the name of the conversation, 1 to 200 printable characters; send it with every request of the conversation",
    ),
    (
        "x-narrows-key: KEY",
        "a [key](../../addons/access/README.md) of this gateway, beside a credential for the upstream",
    ),
    ("x-narrows-preset: NAME", "a preset that `request_presets` or the key allows; any other is refused (400)"),
    (
        "x-narrows-aim: bill",
        "the [aim](../../kernel/README.md#aims-and-sizes), `bill`, `context` or `steady` (`request_aim`)",
    ),
    ("x-narrows-context-tokens: N", "keep the prompt below so many tokens, 1,000 or more (`request_aim`)"),
    (
        "x-narrows-keep: PATTERN, PATTERN",
        "[what is never edited](../../kernel/README.md#protected-content) in this conversation, besides the patterns "
        "of the settings and of the rule; send it with every request of the conversation",
    ),
)
"""Header with a value, and its meaning."""
CLIENTS: Sequence[tuple[str, str]] = (
    ("Claude Code", "`x-claude-code-session-id`; its sub-agents add `x-claude-code-agent-id`: `SESSION:AGENT`"),
    ("Open WebUI", "`x-openwebui-chat-id`, where `ENABLE_FORWARD_USER_INFO_HEADERS` is set"),
    ("opencode", "`x-session-affinity`"),
    ("Codex CLI", "none: the `prompt_cache_key` of its requests names the conversation"),
)
"""Headers of their own in which clients name their conversations."""
REPLY: Sequence[tuple[str, str]] = (
    (
        "x-narrows-mode",
        "`compacted`; `marked` (nothing was shortened, but cache marks were added); `untouched` (your own bytes, "
        "except for the recall tool and its exchanges); `bypassed`; `observed`; `failed-open`; `relayed` (Narrows "
        "reads nothing at this [path](../../kernel/README.md#paths))",
    ),
    (
        "x-narrows-prefix",
        "what became of the prompt's prefix, by comparing digests of what was sent: `first` (nothing of it was sent "
        "before, as far as the store knows, and nothing is shortened); `extended` (this request begins with all that "
        "was sent before); `tail-cut`; `checkpoint:REASON` (below); `client-changed` (the client changed the history, "
        "model or tools); `bypassed`",
    ),
    (
        "x-narrows-tokens-before",
        "tokens of the prompt as the client wrote it: an estimate, calibrated by the provider's usage",
    ),
    ("x-narrows-tokens-after", "the same of the prompt as it was sent"),
    ("x-narrows-edits", "how many edits of each policy the request carries"),
    ("x-narrows-conversation", "the id of the conversation"),
    ("x-narrows-ms", "milliseconds that Narrows added before it forwarded the request"),
    (
        "x-narrows-arm",
        "with a `holdout`: the group of the conversation, `on`, `holdout` or `left` ([measured "
        "savings](../../addons/billing/README.md))",
    ),
    (
        "x-narrows-request-id",
        "the id of the request in the log and in its bill: a UUID of version 7, which sorts by time. Every reply has "
        "one, Narrows' own pages and errors too. A peer in `trusted_proxies` may set it with `x-request-id`",
    ),
    (
        "x-narrows-summary",
        "with presets that use summaries: `pending` (one is being written); `ready` (one waits for its moment; the "
        "request may carry an older one); `adopted` (one is in the request); `stale:REASON` (one may not be used: "
        "`source`, `policy`, `prompt`, `model`, `age`); `failed` (none could be written, or none may be asked for "
        "now: after failures, after the upstream refused or rate-limited the credential, or beyond the budget)",
    ),
    (
        "x-narrows-prices",
        "the prices that planned the request, if the model is not listed: `assumed from MODEL`, `assumed`, or `none` "
        "for a local model ([details](../../upstreams/README.md#models-that-are-not-listed))",
    ),
    ("x-narrows-preset", "the preset that a rule or the request chose, where it differs from the settings"),
    ("x-narrows-warning", "one or more of the warnings below, with commas between them"),
)
"""Header, and what its values mean."""
WARNINGS: Sequence[tuple[str, str]] = (
    ("marker-in-argument", "the model has just written one of Narrows' references into a file"),
    (
        "marks-refused",
        "the upstream answered 400 to Narrows' cache marks; this is its reply to the request without them",
    ),
    (
        "overflow-retried",
        "the upstream found the prompt too long; this is its reply to a shorter one "
        "([overflow](../../kernel/README.md#prompts-that-are-too-long))",
    ),
    (
        "too-many-WHAT",
        "the body holds more than 20,000 `messages`, 40,000 `parts`, 20,000 `calls`, 2,000 `tools`, 1,000 "
        "`parameters` or 900 `levels` of nesting, or too many `fields` or `values`, and was relayed untouched",
    ),
    ("over-context-tokens", "the prompt is larger than `context_tokens`, because the protected part alone is"),
    (
        "no-recall",
        "the request holds texts that Narrows shortened, and not the recall tool: the model cannot get them back. In "
        'Responses, send `"store": false`; elsewhere send tools, fewer than the API allows',
    ),
    (
        "sight",
        "more of the model's actions than the preset's `sight` allows (5 % by default), and three at least, used a "
        "name or replaced a line that Narrows had hidden, or recalled it. Set a lower `sight`, or `gentle` or "
        "`lossless`, for such sessions",
    ),
    (
        "planning-shed",
        "Narrows was overloaded: it decided nothing new and repeated its earlier edits "
        "([limits](../../kernel/wire/README.md#limits))",
    ),
    (
        "protected-91-percent",
        "(or another share) in three requests in a row or more Narrows had to make room, because protected content "
        "(tools, instructions, the first and newest message of the user, the newest turns) fills so much of the "
        "window. Each time the provider caches the prompt again. Begin a new conversation, or send less at once",
    ),
)
"""Warning, and what it means."""
CHECKPOINTS: Sequence[tuple[str, str]] = (
    ("paid", "the rewrite has paid for itself"),
    ("summary", "a summary is used from now on"),
    ("summary-stale", "a summary may no longer be used"),
    ("window", "the model's window or a price tier is near, or the upstream found the prompt too long"),
    ("context", "with the aim `context`: the preset's trigger was reached, or `context_tokens`"),
    ("cold", "the provider's cache has expired anyway"),
    (
        "config",
        "preset, aim, prices, budget or `keep` patterns changed, or another release of Narrows sends records, "
        "summaries or its tool otherwise",
    ),
    ("tools", "a search has found tools, or others of the same tools are deferred"),
    ("recall", "a recall exchange could not be put back, because the client returned another reply"),
    ("replayed", "neither this process nor the store knows what was sent before"),
    ("shed", "there was no time to plan: Narrows decided nothing new and repeated its earlier edits"),
    ("failed-open", "planning failed, and your own bytes were sent"),
)
"""Reason of a checkpoint, and why the prefix changed."""


def page() -> str:
    """The page."""
    return f"""\
# Headers

No client has to send any of these headers. Those of a reply say what became of the request.

## Request headers

{_list(REQUEST)}

`x-narrows` can only make Narrows do less: `x-narrows: on` does not turn on what the settings or a rule turned off.

Without `x-narrows-conversation` Narrows takes the name from `metadata.conversation_id` or `prompt_cache_key`, or from
the client's own header below, which it passes on; else it recognizes a conversation by its first messages. Different
histories may share a name: a request for a title, a sub-agent or a fork has its own records from the first message that
differs. `metadata.user_id` names a person, not a conversation.

{items(f"{client}: {header}" for client, header in CLIENTS)}

## Reply headers

{_list(REPLY)}

## Warnings

{_list(WARNINGS)}

## Reasons of a checkpoint

{_list(CHECKPOINTS)}
"""


def _list(rows: Sequence[tuple[str, str]]) -> str:
    return items(f"`{word}`: {text}" for word, text in rows)
