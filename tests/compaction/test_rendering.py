"""What goes upstream is made once, and only where the same edits met the same bytes."""

import json
from typing import Any

from policies.dialects import DIALECTS
from policies.model.edits import Edit, Fold, Replace
from policies.model.memory import Memory, StepRecord
from policies.model.tokens import Calibration
from proxy.compaction.rendering import Outgoing, Piece, planned
from proxy.requests import ClientRequest, RequestContext
from proxy.store import Key
from tests.kit.messages import MARK, Json, body_of, result, says, split, talk_of, text, thinks, user, uses
from tests.kit.talk import setup

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


def made(
    messages: list[Json], pieces: dict[tuple[object, ...], Piece], *edits: Edit, **fields: Any
) -> tuple[Outgoing, list[Json]]:
    """What becomes of a history where these edits are remembered."""
    request, talk = split(body_of(messages, **fields)), talk_of(body_of(messages))
    client_request = ClientRequest("anthropic_messages", request.body, "t", None, "on", "")
    dialect = DIALECTS["anthropic_messages"]
    work = RequestContext(client_request, dialect, request, talk, setup(), Key("t", "c"), Calibration(), None)
    anchor = talk.end_anchor(talk.steps - 1)
    memory = Memory({anchor: StepRecord(anchor, edits, "checkpoint:window", recall=True)})
    outgoing = planned(work, None, memory, pieces)
    assert outgoing.plan.edits == edits
    found: list[Json] = json.loads(body_of(work, outgoing))["messages"]
    return outgoing, found


def sent(pieces: dict[tuple[object, ...], Piece], *edits: Edit) -> list[Json]:
    return made(TALK, pieces, *edits)[1]


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


def test_s2_the_digest_is_of_what_is_sent_whatever_that_follows_from() -> None:
    """A budget for thinking moves a thought behind a fold; a cache mark says nothing."""
    talk: list[Json] = [TALK[0], says(thinks("hm"), uses()), *TALK[2:]]
    anchors = [block.anchor for block in talk_of(body_of(talk)).blocks]
    fold = Fold(anchors[1], anchors[6], "left out", "test")
    talk[4] = user(result("second " * 50, "c1"))
    marked = [*talk[:4], user(result("second " * 50, "c1", cache_control=MARK)), *talk[5:]]
    budget = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    first, again, other = (made(some, {}, fold, **more) for some, more in ((talk, {}), (marked, {}), (talk, budget)))
    digests = [outgoing.chains.sent_digest(outgoing.chains.sent) for outgoing, _ in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]
    assert first[1] != again[1]
    assert [messages[1]["role"] for _, messages in (first, other)] == ["user", "assistant"]
