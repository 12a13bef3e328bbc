"""Messages made shorter for somebody else, who sends them: each in its own place, and every hidden text by its hash.

Laws
  The same body comes out the same everywhere, whatever was asked before.
  As many messages come out as came in, in their order and roles; what is not edited keeps its bytes.
  A history with replies of the model is planned as a request is, but for folds and marks. Where there is none, each row
  is looked at alone: what becomes of it follows from its own text, whatever stands around it.
  Each hash that a text names is among the hidden texts. What people want left as it is comes back as it came.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from policies.assemble import PlanOptions, assemble
from policies.context import NO_TOOLS
from policies.dialects import DIALECTS, dialect_of
from policies.dialects.common import parsed
from policies.dialects.splitting import check_size
from policies.digests import digested
from policies.keep import names
from policies.model.conversation import Conversation, converse
from policies.model.edits import Replace
from policies.model.rawjson import members
from policies.model.tokens import Counter, encoding_for
from policies.planning.plan import plan
from policies.rules.recap import Recap
from policies.rules.summarize import Summarize
from policies.rules.trim import Trim
from policies.text.stubs import MARK, refs_named

_OVER, _OVER_OF_PEOPLE = 250, 2_000
"""Tokens over which a row that stands alone is shortened: what a tool returned, and what a user message holds."""
_SHARE_OF_A_ROW = 0.25
_FOLDING = (Recap, Summarize, Trim)


@dataclass(frozen=True, slots=True)
class Shortened:
    """`messages` is the JSON list, and `as_it_came` that of the caller; `hidden` are the texts that went out of sight,
    by hash, and `policies` the names of those that shortened something."""

    messages: bytes
    as_it_came: bytes
    tokens_before: int
    tokens_after: int
    hidden: Mapping[str, str]
    policies: Sequence[str]
    shed: bool = False
    """True where there was no time to plan, so that nothing is shortened."""


def shorten(body: bytes, options: Callable[[str], PlanOptions], stop: Callable[[], bool] = lambda: False) -> Shortened:
    """Shorten the `messages` of a body: those of chat completions, or of Anthropic's API. Its `model` says which
    vocabulary counts tokens; `options` are those of planning for a model, and `stop` says whether time is up. Raises
    ValueError where the messages are of neither API, TooManyError where there is too much of something."""
    check_size(body)
    fields = parsed(body)
    if not isinstance(fields, Mapping) or "messages" not in fields:
        raise ValueError("`messages` is missing: it must be a list of chat messages")
    if "model" not in fields:  # then tokens are counted as most models count them
        body = b'{"model":"gpt-4o",' + body.lstrip().removeprefix(b"{")
    dialect = DIALECTS[dialect_of(fields)]
    request = dialect.split(body)
    if request is None:
        raise ValueError("`messages` must be a list of messages, not empty, and `model` a text")
    count = Counter(encoding_for(request.model))
    conversation = converse([dialect.read(request.raw(i), count) for i in range(len(request.spans))])
    came, offered, is_late = body[slice(*members(body)["messages"])], list[Replace](), False
    plan_options = options(request.model)
    if any(message.role == "assistant" for message in conversation.messages):
        consent = dialect.consent(request)
        if consent is not None and not consent.changes:  # else it would have to say more
            # as if the recall tool were there
            kinds = (each for each in plan_options.preset.policies if not isinstance(each, _FOLDING))
            preset = replace(plan_options.preset, policies=tuple(kinds))
            plan_options = replace(plan_options, preset=preset, own_marks="never", recall=False)
            settings = assemble(dialect, request, conversation, count, plan_options).settings
            result = plan(conversation, replace(settings, recall=True, only_to_fit=False), stop=stop)
            is_late = bool(result.shed)
            offered = [] if is_late else [edit for edit in result.edits if isinstance(edit, Replace)]
    else:
        offered, is_late = _alone(conversation, count, plan_options, stop)
    before = after = sum(block.tokens + block.frame for block in conversation.blocks)
    edits, hidden = list[Replace](), dict[str, str]()
    for edit in offered:
        at = conversation.index[edit.at]
        text, ref, name = edit.text, conversation.ref(at), hash_of(conversation.blocks[at].text)
        if ref in refs_named(text):
            text = re.sub(rf"\bref {ref}(?![0-9+])", f"hash={name}", text)
        elif f"hash={name}" not in text and not edit.lossless:
            continue  # no way back from it
        saves = conversation.blocks[at].tokens - count(text)
        if saves > 0:
            edits.append(replace(edit, text=text))
            after -= saves
            if f"hash={name}" in text:
                hidden[name] = conversation.blocks[at].text
    changed = dialect.joined(request, dialect.splice(request, conversation, edits), None, ()) if edits else body
    messages = changed[slice(*members(changed)["messages"])]
    return Shortened(
        messages=messages,
        as_it_came=came,
        tokens_before=before,
        tokens_after=after,
        hidden=hidden,
        policies=sorted({edit.by for edit in edits}),
        shed=is_late,
    )


def hash_of(text: str) -> str:
    """The name of a text: 24 digits, which take fewer tokens than letters, and pass for hexadecimal."""
    digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
    return f"{int.from_bytes(digest[:16], 'big') % 10**24:024}"


def _alone(
    conversation: Conversation, count: Counter, options: PlanOptions, stop: Callable[[], bool]
) -> tuple[list[Replace], bool]:
    """Edits of rows without turns, and whether there was no time for them. Rows are what tools returned, and long user
    messages where no system text stands: beside it they begin a history, whose newest message must stay as it is."""
    is_history = any(message.role in ("system", "developer") for message in conversation.messages)
    edits = list[Replace]()
    for at, block in enumerate(conversation.blocks if options.preset.policies else ()):
        over = _OVER if block.kind == "result" else _OVER_OF_PEOPLE
        if block.tokens <= over or not (block.kind == "result" or (block.kind == "user" and not is_history)):
            continue
        if options.keep and names(options.keep, conversation, at):
            continue
        if stop():
            return [], True
        kind = NO_TOOLS.kind(block.tool, "", block.text)
        visible = digested(block.text, kind, int(_SHARE_OF_A_ROW * block.tokens), frozenset(), count)
        text = f"{visible.rstrip()}\n{MARK} rest: hash={hash_of(block.text)}]"
        edits.append(Replace(block.anchor, text, "offload"))
    return edits, False
