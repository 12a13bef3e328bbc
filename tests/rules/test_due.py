"""When a policy's first cuts are due, said a step ahead: our cache marks stand before them."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Edit
from policies.planning.plan import plan
from policies.presets import PRESETS
from policies.rules.digest import Digest
from policies.rules.offload import Offload
from tests.kit.talk import setup
from tests.planning.test_same_plans import carried, working


@pytest.mark.parametrize("name", ["adaptive", "eager", "steady", "structural", "tool-digest"])
def test_what_is_due_next_is_what_is_cut_first_then(name: str) -> None:
    preset, cuts = PRESETS[name], 0
    first = [policy for policy in preset.configured if isinstance(policy, Offload | Digest)]
    ahead: set[int] = set()

    def probe(conversation: Conversation, context: Context) -> Iterator[Edit]:
        nonlocal ahead, cuts
        for policy in first:
            due, here = policy.due(conversation, context, context.step), conversation.start(context.step)
            seen = {at for at in due if at < here}
            if context.step:
                assert seen == ahead
            ahead = {*policy.due(conversation, context, context.step + 1)}
            assert ahead <= {*conversation.arrived(context.step)}
            cuts += len(seen)
        return iter(())

    for seed in range(12):
        ahead = set()
        plan(carried(working(Random(seed)), None, dict[str, Any]()), setup(probe, exceptions=preset.exceptions))
    assert cuts >= 20
