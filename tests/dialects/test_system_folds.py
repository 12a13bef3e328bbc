"""Folds that stand as system text: what people wrote in their place follows as a user's message."""

import json
from typing import Any

import pytest

from policies.dialects import DIALECTS
from policies.model.conversation import converse
from policies.model.edits import Fold
from policies.money.caches import MarkStyle
from tests.kit.forms import to_anthropic, to_responses
from tests.kit.talk import Json, letters, says, system, user

RECORD, WORDS = "<narrows_summary>\nGoal: go on.\n</narrows_summary>", "<user_message>\nNever push.\n</user_message>"
FORMS = {"openai_chat": lambda chat: chat, "openai_responses": to_responses, "anthropic_messages": to_anthropic}
TALK = [
    system("S"),
    user("Do it."),
    says("?"),
    user("Never push."),
    says("Right."),
    user("Go on."),
    says("So."),
    user("?"),
]


def text_of(message: Json) -> str:
    content: Any = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def sent(dialect: str, last: str, mark: MarkStyle = "", words: int = 1 + len(WORDS), before: Any = None) -> list[Json]:
    """The messages that are sent where a fold stands from the first reply to the message with the text `last`."""
    api, body = DIALECTS[dialect], FORMS[dialect]({"model": "m", "messages": before or TALK})
    request = api.split(json.dumps(body).encode())
    assert request is not None
    conversation = converse([api.read(request.raw(i), letters) for i in range(len(request.spans))])
    first, end = (next(b for b in conversation.blocks if b.text == text) for text in ("?", last))
    text = f"{RECORD}\n{WORDS}" if words else RECORD
    changed = api.splice(request, conversation, [Fold(first.anchor, end.anchor, text, "summarize", None, True, words)])
    if mark:
        marked = api.marks.add(changed[first.message], mark)
        assert marked is not None
        changed[first.message] = marked
    new = json.loads(api.joined(request, changed))
    messages: list[Json] = new["input"] if "input" in new else new["messages"]
    return messages


@pytest.mark.parametrize("last", ["Right.", "Go on."])
@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses"])
def test_m6_the_record_stands_alone_and_peoples_words_in_a_users_message(dialect: str, last: str) -> None:
    messages = sent(dialect, last)
    at = next(i for i, message in enumerate(messages) if text_of(message) == RECORD)
    fill, behind = "[narrows: earlier messages left out]", {"Right.": "Go on.", "Go on.": "So."}[last]
    # roles alternate as those of the client do: the record is followed by what people wrote and the last reply
    closing = [("assistant", "Right.")] if last == "Right." else []
    assert [(message["role"], text_of(message)) for message in messages[at : at + 3 + len(closing)]] == [
        ("system", RECORD),
        ("assistant", fill),
        ("user", WORDS),
        *closing,
    ]
    assert [text_of(message) for message in messages if message["role"] == "system"][-1] == RECORD
    assert text_of(messages[at + 3 + len(closing)]) == behind


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses"])
def test_m6_without_words_of_people_only_the_last_reply_follows_it(dialect: str) -> None:
    messages = sent(dialect, "Right.", words=0)
    assert [text_of(message) for message in messages if "narrows" in text_of(message)] == [RECORD]
    at = next(i for i, message in enumerate(messages) if text_of(message) == RECORD)
    assert [text_of(message) for message in messages[at + 1 : at + 3]] == ["Right.", "Go on."]


def test_m6_in_anthropics_api_it_is_the_models_and_peoples_words_are_theirs() -> None:
    messages = sent("anthropic_messages", "Right.")
    found = [(m["role"], text_of(m)) for m in messages if "narrows" in text_of(m) or WORDS in text_of(m)]
    assert found == [("assistant", "[narrows: earlier messages left out]"), ("user", WORDS), ("assistant", RECORD)]


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses"])
def test_own_marks_stand_behind_both(dialect: str) -> None:
    messages = sent(dialect, "Right.", "prompt_cache_breakpoint")
    (marked,) = (message for message in messages if "prompt_cache_breakpoint" in json.dumps(message))
    assert text_of(marked) == WORDS
