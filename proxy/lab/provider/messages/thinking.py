"""Thinking: its blocks come back as they were, and newer models bind them to the prompt before them (Claude docs,
"Preserved thinking" and "Prefix checks on thinking blocks"; types of the official SDK: BetaThinkingBlockBindingParam,
BetaInputTransformation).

Laws
  A thought of a newer model is valid behind the tools, the system text and the blocks that it was thought behind, other
  thoughts among them. Cache marks, the order of a block's fields, and how blocks are divided into messages of one role
  make no difference, nor does a string in place of one text.
  Elsewhere it is refused, or dropped with the thoughts that follow it at once where the request asks for that. What is
  dropped is part of the prompt before later thoughts all the same: they are bound to what was sent.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from multidict import MultiMapping

from policies.dialects.anthropic_messages.request import is_bound
from policies.money.caches import CacheRule
from proxy.lab.provider import jsontext
from proxy.lab.provider.messages.blocks import THOUGHTS, blocks
from proxy.lab.provider.messages.order import tool_loop
from proxy.lab.provider.prompt import unmarked
from proxy.lab.provider.rules import Json, Violation, Violations, expected, extra, mapping, refusal, required
from proxy.lab.provider.signatures import PREFIX_DIGEST, signed

LEAST_BUDGET = 1_024
"""Tokens."""
MODES = ("enabled", "disabled", "adaptive", "between_tools")
VERSION = "anthropic-version"
CONTROLS = "thinking-binding-controls-2026-08-01"
BEHAVIOR = "prefix_mismatch_behavior"


def check_thinking(body: Json, _: CacheRule) -> Violations:
    """What is wrong with how a request has the model think, and with the thoughts that it sends back."""
    thinking = mapping(body.get("thinking"))
    if thinking and thinking.get("type") not in MODES:
        yield refusal("thinking", "Input tag 'type' does not match any of the expected tags")
    for i, message in enumerate(body["messages"]):
        for j, block in enumerate(blocks(message["content"])):
            if block["type"] == "thinking":
                pair = signed(block["signature"])
                if pair is None or block["thinking"] not in ("", pair[0]):
                    yield refusal(f"messages.{i}.content.{j}", "Invalid `signature` in `thinking` block")
    yield from _check_binding(body, thinking)
    if thinking.get("type") in ("enabled", "adaptive"):
        for i, message in enumerate(body["messages"]):
            kinds = [block["type"] for block in blocks(message["content"])]
            if any(kind in THOUGHTS for kind in kinds) and kinds[0] not in THOUGHTS:
                why = "If an assistant message contains any thinking blocks, the first block must be `thinking` or "
                yield refusal(f"messages.{i}.content.0", f"{why}`redacted_thinking`. Found `{kinds[0]}`.")
    if thinking.get("type") == "enabled":
        budget, at = thinking.get("budget_tokens"), "thinking.enabled.budget_tokens"
        if not isinstance(budget, int):
            yield required(at)
        elif budget < LEAST_BUDGET:
            yield refusal(at, f"Input should be greater than or equal to {LEAST_BUDGET}")
        elif budget >= body.get("max_tokens", budget + 1):
            yield refusal("", "`max_tokens` must be greater than `thinking.budget_tokens`.")
        if body.get("temperature") not in (None, 1):
            yield refusal("", "`temperature` may only be set to 1 when thinking is enabled.")
        if mapping(body.get("tool_choice")).get("type") in ("any", "tool"):
            yield refusal("", "Thinking may not be enabled when tool_choice forces tool use.")
        yield from _loop_start(body["messages"])


def _loop_start(messages: Sequence[Json]) -> Violations:
    """In the tool loop in progress, the model's first message begins with a thought."""
    loop = tool_loop(messages)
    of_model = [message for message in loop if message.role == "assistant"]
    if not loop or loop[0].role == "assistant" or not of_model:
        return
    start = of_model[-1]
    kind = start.blocks[0]["type"] if start.blocks else "nothing"
    if kind not in THOUGHTS:
        why = f"Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` is enabled, a final "
        why += "`assistant` message must start with a thinking block (preceding the lastmost set of `tool_use` and "
        yield refusal(f"messages.{start.at}.content.0.type", why + "`tool_result` blocks).")


# --- thoughts that are bound to the prompt before them ---


class PrefixDigest:
    def __init__(self, body: Json) -> None:
        self._hash = sha256()
        for tool in body.get("tools") or ():
            self.add("tool", tool)
        for block in blocks(body.get("system")):
            self.add("instructions", block)

    def add(self, role: str, block: Json) -> None:
        self._hash.update(sha256(jsontext.write([role, _comparable(block)])).digest())

    def __str__(self) -> str:
        return self._hash.hexdigest()[:PREFIX_DIGEST]

    def matches(self, thought: Json) -> bool:
        """Whether a thought may follow here."""
        pair = signed(thought.get("signature"))
        return pair is None or pair[1] in ("", str(self))


def _comparable(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    if block.get("type") in THOUGHTS:  # the text may have been left out
        return [block.get("signature"), block.get("data")]
    fields = {key: value for key, value in sorted(unmarked(block).items()) if value is not None}
    if isinstance(fields.get("content"), str | list):
        fields["content"] = [_comparable(inner) for inner in blocks(fields["content"])]
    return fields


def bound_prefix(body: Json) -> tuple[PrefixDigest | None, list[tuple[int, int]]]:
    """What the model's next thought is bound to; None where the model binds none. And the thoughts that were made
    behind another prompt, each with those that follow it at once: the message's index, and the block's in it."""
    if not is_bound(str(body.get("model"))):
        return None, []
    prefix, mismatched, fails = PrefixDigest(body), [], False
    for i, message in enumerate(body["messages"]):
        for j, block in enumerate(blocks(message["content"])):
            fails = block["type"] in THOUGHTS and (fails or not prefix.matches(block))
            if fails:
                mismatched.append((i, j))
            prefix.add(message["role"], block)
    return prefix, mismatched


def dropped(body: Json) -> list[tuple[int, int]]:
    """The thoughts that are left out, where the request asks for that."""
    controls = mapping(mapping(body.get("thinking")).get("block_binding"))
    return bound_prefix(body)[1] if controls.get(BEHAVIOR) == "drop_block" else []


def entries(body: Json) -> list[Json]:
    """The system text and the messages, as the model is shown them: without the thoughts that are dropped."""
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    without = frozenset(dropped(body))
    messages = []
    for i, message in enumerate(body["messages"]):
        content = blocks(message["content"])
        left = [block for j, block in enumerate(content) if (i, j) not in without]
        if len(left) == len(content):
            messages.append(message)
        elif left:
            messages.append({**message, "content": left})
    return [*system, *messages]


def _check_binding(body: Json, thinking: Json) -> Violations:
    at, controls = _binding_at(thinking), thinking.get("block_binding")
    if controls is not None and thinking.get("type") not in ("enabled", "adaptive"):
        yield extra(at)
    elif controls is not None and not isinstance(controls, dict):
        yield expected(at, "dictionary")
    elif controls is not None:
        for name in controls.keys() - {BEHAVIOR}:
            yield extra(f"{at}.{name}")
        if controls.get(BEHAVIOR) not in (None, "error", "drop_block"):
            yield refusal(f"{at}.{BEHAVIOR}", "Input should be 'error' or 'drop_block'")
    if mapping(controls).get(BEHAVIOR) != "drop_block":
        for i, j in bound_prefix(body)[1]:
            why = "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the "
            why += f'block, or set `thinking.block_binding.{BEHAVIOR}` to "drop_block".'
            yield refusal(f"messages.{i}.content.{j}", why)


def _binding_at(thinking: Json) -> str:
    return f"thinking.{thinking.get('type')}.block_binding"


# --- the headers that belong to it ---


def _has_controls(headers: MultiMapping[str]) -> bool:
    """Whether the request may choose what becomes of mismatched thoughts, and is told what did."""
    betas = ",".join(headers.getall("anthropic-beta", [])).split(",")
    return CONTROLS in map(str.strip, betas)


def missing_header(body: Json, headers: MultiMapping[str]) -> Violation | None:
    """A header that the request must carry, and this one does not."""
    if VERSION not in headers:
        return Violation(f"{VERSION}: header is required")
    thinking = mapping(mapping(body).get("thinking"))
    return extra(_binding_at(thinking)) if "block_binding" in thinking and not _has_controls(headers) else None


def input_transformations(body: Json, headers: MultiMapping[str]) -> dict[str, Any]:
    """The field of the reply that lists the thoughts that were left out, where the request may have it."""
    if not _has_controls(headers):
        return {}
    entry = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
    return {"input_transformations": [{**entry, "path": f"messages.{i}.content.{j}"} for i, j in dropped(body)]}
