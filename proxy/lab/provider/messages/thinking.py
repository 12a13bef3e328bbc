"""What thinking asks of a request: its blocks come back as they were, and the tool loop at hand begins with one."""

from collections.abc import Sequence

from proxy.lab.provider.messages.bound import binding_faults
from proxy.lab.provider.messages.order import THOUGHTS, loop
from proxy.lab.provider.messages.prompt import blocks
from proxy.lab.provider.messages.signatures import signed
from proxy.lab.provider.messages.words import fault, required
from proxy.lab.provider.rules import Json, Violations, mapping

LEAST = 1_024
"""Tokens of a budget."""
MODES = ("enabled", "disabled", "adaptive", "between_tools")


def thinking_faults(body: Json) -> Violations:
    """What is wrong with how a request has the model think, and with what it thought."""
    thinking = mapping(body.get("thinking"))
    if thinking and thinking.get("type") not in MODES:
        yield fault("thinking", "Input tag 'type' does not match any of the expected tags")
    yield from _signed(body["messages"])
    yield from binding_faults(body)
    if thinking.get("type") in ("enabled", "adaptive"):
        yield from _first(body["messages"])
    if thinking.get("type") == "enabled":
        yield from _budget(body, thinking)
        yield from _settings(body)
        yield from _begun(body["messages"])


def _signed(messages: Sequence[Json]) -> Violations:
    for i, message in enumerate(messages):
        for j, block in enumerate(blocks(message["content"])):
            if block["type"] == "thinking":
                found = signed(block["signature"])
                if found is None or block["thinking"] not in ("", found.thought):
                    yield fault(f"messages.{i}.content.{j}", "Invalid `signature` in `thinking` block")


def _first(messages: Sequence[Json]) -> Violations:
    for i, message in enumerate(messages):
        kinds = [block["type"] for block in blocks(message["content"])]
        if any(kind in THOUGHTS for kind in kinds) and kinds[0] not in THOUGHTS:
            why = "If an assistant message contains any thinking blocks, the first block must be `thinking` or "
            yield fault(f"messages.{i}.content.0", f"{why}`redacted_thinking`. Found `{kinds[0]}`.")


def _budget(body: Json, thinking: Json) -> Violations:
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int):
        yield required("thinking.enabled.budget_tokens")
    elif budget < LEAST:
        yield fault("thinking.enabled.budget_tokens", f"Input should be greater than or equal to {LEAST}")
    elif budget >= body.get("max_tokens", budget + 1):
        yield fault("", "`max_tokens` must be greater than `thinking.budget_tokens`.")


def _settings(body: Json) -> Violations:
    if body.get("temperature") not in (None, 1):
        yield fault("", "`temperature` may only be set to 1 when thinking is enabled.")
    if mapping(body.get("tool_choice")).get("type") in ("any", "tool"):
        yield fault("", "Thinking may not be enabled when tool_choice forces tool use.")


def _begun(messages: Sequence[Json]) -> Violations:
    """In the tool loop that is going on, the model's first message begins with what it thought."""
    going_on = loop(messages)
    asked = [message for message in going_on if message.role == "assistant"]
    if not going_on or going_on[0].role == "assistant" or not asked:
        return
    begun = asked[-1]
    kind = begun.blocks[0]["type"] if begun.blocks else "nothing"
    if kind not in THOUGHTS:
        why = f"Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` is enabled, a final "
        why += "`assistant` message must start with a thinking block (preceding the lastmost set of `tool_use` and "
        yield fault(f"messages.{begun.at}.content.0.type", why + "`tool_result` blocks).")
