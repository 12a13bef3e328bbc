"""What goes upstream is made once, and only where the same edits met the same bytes."""

import json

from policies.context import Memory, StepRecord
from policies.conversation import converse
from policies.dialects import DIALECTS
from policies.edits import Edit, Fold, Replace
from policies.tokens import Calibration
from proxy.outgoing import Incoming, Piece, Work, planned
from proxy.store import Key
from tests.policies.messages import body_of, result, says, split, talk_of, text, user, uses
from tests.policies.talk import letters, setup

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


def sent(pieces: dict[tuple[object, ...], Piece], *edits: Edit) -> list[object]:
    """What becomes of the history where these edits are remembered."""
    request = split(body_of(TALK))
    talk = converse([DIALECTS["anthropic_messages"].read(request.raw(i), letters) for i in range(len(TALK))])
    incoming = Incoming("anthropic_messages", request.body, "t", None, "on", "")
    dialect = DIALECTS["anthropic_messages"]
    work = Work(incoming, dialect, request, talk, setup(), Key("t", "c"), Calibration(), None)
    anchor = talk.end_anchor(talk.steps - 1)
    memory = Memory({anchor: StepRecord(anchor, edits, "checkpoint:window", recall=True)})
    outgoing = planned(work, None, memory, pieces)
    assert outgoing.plan.edits == edits
    found: list[object] = json.loads(work.body(outgoing))["messages"]
    return found


def test_s1_a_message_that_a_fold_leaves_in_part_is_not_taken_for_the_whole_one() -> None:
    anchors = [block.anchor for block in talk_of(body_of(TALK)).blocks]
    # blocks: 0 go, 1 call, 2 first, 3 image, 4 call, 5 second, 6 and on, ...
    short, fold = Replace(anchors[2], "short", "test"), Fold(anchors[4], anchors[5], "left out", "test")
    begun = Fold(anchors[3], anchors[5], "more left out", "test")
    pieces: dict[tuple[object, ...], Piece] = {}
    whole = sent(pieces, short)
    assert whole[2] == user(result("short", "c0"), IMAGE)
    in_part = sent(pieces, short, fold)
    assert in_part[2:5] == [whole[2], says("left out"), user(text("and on"))]
    assert sent(pieces, short, begun)[2:5] == [user(result("short", "c0")), says("more left out"), user(text("and on"))]
    assert sent(pieces, short, fold) == in_part
    assert len(pieces) == 1
    assert sent(pieces, short) == whole
