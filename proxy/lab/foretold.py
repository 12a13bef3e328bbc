"""What a preset would ask a model for, and when: said of one request, without asking anybody."""

from collections.abc import Iterator

from policies.compact import Compacted
from policies.model.windows import Trigger, is_large
from policies.rules.digest import Digest
from policies.rules.summarize import Summarize
from policies.tools import RECALL


def foretold(result: Compacted) -> Iterator[str]:
    """One sentence for the summary, and one for the digests, that the preset would have a model write."""
    conversation, settings = result.conversation, result.settings
    for policy in settings.policies:
        if isinstance(policy, Summarize) and (when := policy.triggers(is_chat=settings.is_chat, is_first=True)):
            waiting = [_moment(result, trigger) for trigger in when]
            moments = " or ".join(waiting) if all(waiting) else "as soon as enough lies before the newest turns"
            pays = ", once it pays" if settings.aim == "bill" else ""
            yield f"A summary would be asked for {moments}{pays}."
        elif isinstance(policy, Digest) and policy.by_model:
            outputs = [block for block in conversation.blocks if block.answers is not None and block.tool != RECALL]
            large = sum(is_large(block.text, block.tokens, policy.over) for block in outputs)
            yield f"A model would be asked for digests of {large:,} of its {len(outputs):,} outputs, as they arrive."


def _moment(result: Compacted, trigger: Trigger) -> str:
    """When a trigger will hold, with how far the request is; empty where it holds now."""
    conversation, budget = result.conversation, result.settings.budget
    step, tokens = conversation.steps - 1, result.plan.after
    if trigger.holds(conversation, step, tokens, budget.window, budget.high):
        return ""
    limits = (
        ("tokens", int(trigger.least(budget.window, budget.high)), tokens),
        ("messages", trigger.messages, conversation.blocks[-1].message + 1),
        ("turns", trigger.turns, step),
    )
    return " and ".join(f"at {limit:,} {unit} ({count:,} so far)" for unit, limit, count in limits if limit)
