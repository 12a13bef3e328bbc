"""Indexes of a history: what is carried over from an earlier request is what a new one would work out."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, Index, converse
from tests import examples
from tests.kit import messages as claude
from tests.kit.talk import calls, gives, letters, says, system, user

anthropic_messages = DIALECTS["anthropic_messages"]
openai_chat = DIALECTS["openai_chat"]

FILE = "\n".join(f"line {i} of a file" for i in range(4))
CHAT = [user("go"), user("go on"), system("Mind it."), says("ok"), says("```\nls\n```"), user("<output>a</output>")]
CHAT += [calls("ls"), calls("cat a", "ls"), gives("a"), gives(FILE), gives(f"{FILE}\nand more\n{FILE}", "call_1")]
MARKED = {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]}
OPENED = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
POOL = [openai_chat.read(json.dumps(message).encode(), letters) for message in (*CHAT, MARKED)]
POOL += 3 * [openai_chat.read(json.dumps(system("Mind it.")).encode(), letters)]  # of which several follow each other
POOL += [anthropic_messages.read(json.dumps(claude.says(*each)).encode(), letters) for each in ((OPENED,), (FOUND,))]
NAMES = [name for name, value in vars(Conversation).items() if isinstance(value, Index)]


def all_of(conversation: Conversation) -> dict[str, object]:
    """Every index; of a dictionary the order counts, too."""
    values = {name: getattr(conversation, name) for name in [*NAMES, "no_cut_before"]}
    return {name: [*value.items()] if name == "kinds" else value for name, value in values.items()}


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_a_history_that_grows_or_branches_has_the_indexes_of_one_that_is_read_anew(data: st.DataObject) -> None:
    messages = data.draw(st.lists(st.sampled_from(POOL), max_size=20))
    conversation = converse(messages)
    for _ in range(5):
        for name in data.draw(st.sets(st.sampled_from(NAMES))):
            getattr(conversation, name)
        end = len(messages) - data.draw(st.sampled_from([0, 0, 1, 1, 2, 5, 20]))
        messages = messages[: max(0, end)] + data.draw(st.lists(st.sampled_from(POOL), max_size=4))
        before, conversation = conversation, converse(messages, conversation)
        assert conversation == converse(messages)
        if data.draw(st.booleans()):
            assert all_of(conversation) == all_of(converse(messages))
        if data.draw(st.integers(0, 5)) == 0:
            assert all_of(before) == all_of(converse(before.messages))


def test_what_is_held_gives_nothing_away() -> None:
    before = converse(POOL)
    index = before.index
    with before.carried.held():
        assert converse([*POOL, POOL[0]], before).index is not index
    assert before.index is index
    assert converse([*POOL, POOL[0]], before).index is index
    assert before.index == converse(POOL).index


def test_the_place_of_system_text_that_was_said_twice_is_the_one_that_is_left() -> None:
    go, mind, answer = POOL[0], POOL[2], POOL[3]
    before = converse([go, mind, mind])
    assert before.index[before.blocks[1].anchor] == 2
    after = converse([go, mind, answer], before)
    assert after.carried.values
    assert after.index == converse([go, mind, answer]).index
