"""Thoughts that are bound to the prompt before them (Claude docs, "Preserved thinking" and "Prefix checks on thinking
blocks"; types of the official SDK: BetaThinkingBlockBindingParam, BetaInputTransformation).

Laws
  What a newer model thinks is valid behind the tools, the system text and the blocks that it was thought behind, other
  thoughts among them. Cache marks, the order of a block's fields, and how blocks are parted into messages of one role
  make no difference, nor does a string in place of one text.
  Elsewhere it is refused, or dropped with the thoughts that follow it at once where the request asks for that. What is
  dropped is part of the prompt before later thoughts all the same: they are bound to what was sent.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from multidict import MultiMapping

from policies.dialects.anthropic_messages.binding import is_bound
from proxy.lab.provider import jsontext
from proxy.lab.provider.messages.order import THOUGHTS
from proxy.lab.provider.messages.prompt import blocks
from proxy.lab.provider.messages.signatures import DIGEST, signed
from proxy.lab.provider.messages.words import expected, extra, fault
from proxy.lab.provider.prompt import unmarked
from proxy.lab.provider.rules import Json, Violation, Violations, mapping

VERSION = "anthropic-version"
CONTROLS = "thinking-binding-controls-2026-08-01"
BEHAVIOR = "prefix_mismatch_behavior"
Place = tuple[int, int]
"""Of a block: which message, and where in it."""


class Prefix:
    """A digest of what has been said so far."""

    def __init__(self, body: Json) -> None:
        self._said = sha256()
        for tool in body.get("tools") or ():
            self.add("tool", tool)
        for block in blocks(body.get("system")):
            self.add("instructions", block)

    def add(self, voice: str, block: Json) -> None:
        """One more block is said."""
        self._said.update(sha256(jsontext.write([voice, _plain(block)])).digest())

    @property
    def digest(self) -> str:
        """Of all that has been said."""
        return self._said.hexdigest()[:DIGEST]

    def carries(self, block: Json) -> bool:
        """Whether a thought may follow here."""
        found = signed(block.get("signature"))
        return found is None or found.prefix in ("", self.digest)


def _plain(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    if block.get("type") in THOUGHTS:  # the text may have been left out
        return [block.get("signature"), block.get("data")]
    said = {key: value for key, value in sorted(unmarked(block).items()) if value is not None}
    if isinstance(said.get("content"), str | list):
        said["content"] = [_plain(inner) for inner in blocks(said["content"])]
    return said


def prefix_of(body: Json) -> Prefix | None:
    """What the model's next thought is bound to; None where the model binds none."""
    if not is_bound(str(body.get("model"))):
        return None
    prefix = Prefix(body)
    for message in body["messages"]:
        for block in blocks(message["content"]):
            prefix.add(message["role"], block)
    return prefix


def foreign(body: Json) -> Iterator[Place]:
    """Where thoughts stand that were made behind another prompt, each with those that follow it at once."""
    if not is_bound(str(body.get("model"))):
        return
    prefix, fails = Prefix(body), False
    for i, message in enumerate(body["messages"]):
        for j, block in enumerate(blocks(message["content"])):
            fails = block["type"] in THOUGHTS and (fails or not prefix.carries(block))
            if fails:
                yield i, j
            prefix.add(message["role"], block)


def dropped(body: Json) -> list[Place]:
    """The thoughts that are left out, where the request asks for that."""
    controls = mapping(mapping(body.get("thinking")).get("block_binding"))
    return list(foreign(body)) if controls.get(BEHAVIOR) == "drop_block" else []


def entries(body: Json) -> list[Json]:
    """The system text and the messages, as the model is shown them."""
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    gone = frozenset(dropped(body))
    shown = (_without(gone, i, message) for i, message in enumerate(body["messages"])) if gone else body["messages"]
    return [*system, *(message for message in shown if message is not None)]


def _without(gone: frozenset[Place], i: int, message: Json) -> Json | None:
    said = blocks(message["content"])
    left = [block for j, block in enumerate(said) if (i, j) not in gone]
    if len(left) == len(said):
        return message
    return {**message, "content": left} if left else None


def binding_faults(body: Json) -> Violations:
    """What is wrong with how a request controls the binding, and with the thoughts that it sends back."""
    thinking = mapping(body.get("thinking"))
    yield from _control_faults(thinking)
    if mapping(thinking.get("block_binding")).get(BEHAVIOR) != "drop_block":
        for i, j in foreign(body):
            why = "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the "
            why += f'block, or set `thinking.block_binding.{BEHAVIOR}` to "drop_block".'
            yield fault(f"messages.{i}.content.{j}", why)


def _control_faults(thinking: Json) -> Violations:
    at, controls = _where(thinking), thinking.get("block_binding")
    if controls is None:
        return
    if thinking.get("type") not in ("enabled", "adaptive"):
        yield extra(at)
    elif not isinstance(controls, dict):
        yield expected(at, "dictionary")
    else:
        for name in controls.keys() - {BEHAVIOR}:
            yield extra(f"{at}.{name}")
        if controls.get(BEHAVIOR) not in (None, "error", "drop_block"):
            yield fault(f"{at}.{BEHAVIOR}", "Input should be 'error' or 'drop_block'")


def _where(thinking: Json) -> str:
    return f"thinking.{thinking.get('type')}.block_binding"


# --- the header that comes with it ---


def controls_binding(headers: MultiMapping[str]) -> bool:
    """Whether a request may say what becomes of such thoughts, and is told."""
    said = ",".join(headers.getall("anthropic-beta", [])).split(",")
    return CONTROLS in map(str.strip, said)


def headless(asked: Json, headers: MultiMapping[str]) -> Violation | None:
    """A header that the request must carry, and this one does not."""
    if VERSION not in headers:
        return Violation(f"{VERSION}: header is required")
    thinking = mapping(mapping(asked).get("thinking"))
    return extra(_where(thinking)) if "block_binding" in thinking and not controls_binding(headers) else None


def transformations(body: Json, headers: MultiMapping[str]) -> dict[str, Any]:
    """What the reply tells of the blocks that were left out, where it is to tell."""
    if not controls_binding(headers):
        return {}
    told = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
    return {"input_transformations": [{**told, "path": f"messages.{i}.content.{j}"} for i, j in dropped(body)]}
