"""What goes upstream of a plan, and what of it stands for a request that extends another."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, Message, converse
from policies.model.edits import Edit, Fold, Replace
from policies.model.memory import Memory, StepRecord
from policies.money.catalog import prices_for
from policies.money.ledger import Ledger
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanState
from policies.render import Rendering, render
from policies.render import body_of as render_body
from tests import examples
from tests.kit.messages import MARK, Json, body_of, result, says, split, talk_of, text, thinks, user, uses
from tests.kit.talk import letters, setup

IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a"}}
TALK = [
    user("go"),
    says(uses("c0")),
    user(result("first " * 50, "c0"), IMAGE),
    says(uses("c1")),
    user(result("second " * 50, "c1"), text("and on")),
    says(uses("c2")),
    user(result("third", "c2")),
    says("done"),
    user("thanks"),
]


def rendered(messages: list[Json], *edits: Edit, **fields: Any) -> tuple[Rendering, list[Json]]:
    """What becomes of a history where these edits are remembered."""
    request, talk = split(body_of(messages, **fields)), talk_of(body_of(messages))
    anchor = talk.end_anchor(talk.steps - 1)
    memory = Memory({anchor: StepRecord(anchor, edits, "checkpoint:window", recall=True)})
    result = plan(talk, setup(exchanges=False), memory)
    assert result.edits == edits
    rendering = render("anthropic_messages", request, talk, result)
    body = render_body(DIALECTS["anthropic_messages"], request, result, rendering)
    return rendering, json.loads(body)["messages"]


def sent(*edits: Edit) -> list[Json]:
    return rendered(TALK, *edits)[1]


def test_s1_a_message_that_a_fold_leaves_in_part_is_not_taken_for_the_whole_one() -> None:
    anchors = [block.anchor for block in talk_of(body_of(TALK)).blocks]
    # blocks: 0 go, 1 call, 2 first, 3 image, 4 call, 5 second, 6 and on, ...
    short, fold = Replace(anchors[2], "short", "test"), Fold(anchors[4], anchors[5], "left out", "test")
    begun = Fold(anchors[3], anchors[5], "more left out", "test")
    whole = sent(short)
    assert whole[2] == user(result("short", "c0"), IMAGE)
    in_part = sent(short, fold)
    assert in_part[2:5] == [whole[2], says(text("left out")), user(text("and on"))]
    beside = [user(result("short", "c0")), says(text("more left out")), user(text("and on"))]
    assert sent(short, begun)[2:5] == beside
    assert sent(short, fold) == in_part
    assert sent(short) == whole


def test_s2_the_digest_is_of_what_is_sent_whatever_that_follows_from() -> None:
    """A budget for thinking moves a thought behind a fold; a cache mark says nothing."""
    talk: list[Json] = [TALK[0], says(thinks("hm"), uses()), *TALK[2:]]
    anchors = [block.anchor for block in talk_of(body_of(talk)).blocks]
    fold = Fold(anchors[1], anchors[6], "left out", "test")
    talk[4] = user(result("second " * 50, "c1"))
    marked = [*talk[:4], user(result("second " * 50, "c1", cache_control=MARK)), *talk[5:]]
    budget = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    first, again, other = (rendered(some, fold, **more) for some, more in ((talk, {}), (marked, {}), (talk, budget)))
    digests = [rendering.chains.sent_digest(rendering.chains.sent) for rendering, _ in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]
    assert first[1] != again[1]
    assert [messages[1]["role"] for _, messages in (first, other)] == ["assistant", "assistant"]


SPOKEN: list[Json] = [*TALK, {"role": "system", "content": "Mind it."}, says(thinks("hm"), text("so")), user("go on")]


@settings(deadline=None, max_examples=examples(150))
@given(st.data())
def test_s2_what_stands_of_an_earlier_rendering_is_what_would_be_rendered_now(data: st.DataObject) -> None:
    """Edits come, go and change anywhere while the history grows, or another follows an earlier part of it."""
    api, seen = DIALECTS["anthropic_messages"], dict[bytes, Message]()
    talk, before, texts, folds = list(TALK), converse([]), dict[str, Replace](), dict[str, Fold]()
    for _ in range(4):
        talk = talk[: data.draw(st.sampled_from([len(talk)] * 3 + [4]))]
        talk += data.draw(st.lists(st.sampled_from(SPOKEN), min_size=1, max_size=6))
        budget = data.draw(st.sampled_from([{}] * 3 + [{"thinking": {"type": "enabled", "budget_tokens": 1024}}]))
        request = split(body_of(talk, **budget))
        raws = [request.raw(i) for i in range(len(request.spans))]
        messages = [seen.setdefault(raw, api.read(raw, letters)) for raw in raws]
        before, anew = converse(messages, before), converse(messages)
        blocks = before.blocks
        for block in data.draw(
            st.lists(st.sampled_from([block for block in blocks if block.kind == "result"] or [None]))
        ):
            if block is not None and texts.pop(block.anchor, None) is None:
                texts[block.anchor] = Replace(block.anchor, data.draw(st.sampled_from(["short", "shorter"])), "test")
        first = data.draw(st.integers(0, len(blocks) - 1))
        last = data.draw(st.integers(first, min(first + 3, len(blocks) - 1)))
        folds = {} if data.draw(st.integers(0, 3)) == 0 else folds
        if not folds:
            folds = {blocks[first].anchor: Fold(blocks[first].anchor, blocks[last].anchor, "left out", "test")}
        edits = sorted(
            [edit for edit in [*texts.values(), *folds.values()] if _stands(edit, before, [*folds.values()])],
            key=lambda edit: before.index[edit.at if isinstance(edit, Replace) else edit.first],
        )
        result = Plan(tuple(edits), (), (), "", (), 0, 0, PlanState(Ledger(prices_for("m"))))
        carried, plain = (render("anthropic_messages", request, each, result) for each in (before, anew))
        assert carried.messages == plain.messages
        assert render_body(api, request, result, carried) == render_body(api, request, result, plain)
        one, other = carried.chains, plain.chains
        assert (one.sent, one.received) == (other.sent, other.received)
        for n in range(len(talk) + 2):
            assert (one.sent_digest(n), one.received_digest(n)) == (other.sent_digest(n), other.received_digest(n))
            assert one.sent_before(n) == other.sent_before(n)


def _stands(edit: Edit, conversation: Conversation, folds: Sequence[Fold]) -> bool:
    """Whether an edit is of this history, and not inside a fold."""
    index = conversation.index
    if isinstance(edit, Fold):
        return {edit.first, edit.last} <= index.keys()
    inside = (range(index[f.first], index[f.last] + 1) for f in folds if {f.first, f.last} <= index.keys())
    return edit.at in index and all(index[edit.at] not in run for run in inside)
