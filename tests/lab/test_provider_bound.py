"""Thoughts of newer models, which the provider takes back behind the prompt they were made behind, and nowhere else."""

from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from typing import Any

import anthropic
import pytest

from policies.money.prices import Prices
from proxy.lab.provider import Provider, Say, start
from proxy.lab.provider.signatures import sign

Body = dict[str, Any]
Change = Callable[[Body], object]
CONTROLS = "thinking-binding-controls-2026-08-01"
MARK = {"type": "ephemeral"}
CALLS = [
    {"id": f"call_{k}", "type": "function", "function": {"name": "read", "arguments": f'{{"b":{k},"a":1}}'}}
    for k in range(3)
]
SAID = (
    Say(calls=CALLS[:1], thinking=("Where is it?", "Here, surely.")),
    Say("There.", CALLS[1:2], thinking=("Not here.",)),
    Say("Hm.", CALLS[2:], thinking=("Still not.",)),
    Say("Done.", thinking=("Found.",)),
)
DROP = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def asked(model: str = "claude-opus-5-5") -> Body:
    return {
        "model": model,
        "max_tokens": 2_000,
        "system": "Be brief.",
        "tools": [{"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": "Go"}],
    }


Claude = anthropic.AsyncAnthropic


@pytest.fixture
async def claude() -> AsyncIterator[Claude]:
    upstream = Provider(prices=lambda model: Prices(model=model), count=len)
    upstream.play("key", SAID)
    async with (
        await start(upstream) as running,
        Claude(base_url=running.url.removesuffix("/v1"), api_key="key", max_retries=0) as client,
    ):
        yield client


async def session(claude: Claude, model: str = "claude-opus-5-5") -> Body:
    """A request behind three rounds of the tool loop: history as the client's SDK says it."""
    request = asked(model)
    for k in range(3):
        heard = await claude.messages.create(**request)
        found = {"type": "tool_result", "tool_use_id": f"call_{k}", "content": f"Result {k}."}
        blocks = [block.model_dump() for block in heard.content]
        request["messages"] += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [found]}]
    return request


def result(request: Body, k: int) -> Body:
    return request["messages"][2 * k + 2]["content"][0]


def cut(request: Body) -> None:
    result(request, 1)["content"] = "[cut]"


def said(request: Body, k: int) -> list[Body]:
    return request["messages"][2 * k + 1]["content"]


def spread(request: Body) -> None:
    """The same with marks, with strings as lists, with neighbours of one role, and with other fields first."""
    request["system"] = [{"type": "text", "text": "Be brief.", "cache_control": MARK}]
    request["tools"][0]["cache_control"] = MARK
    request["messages"][0]["content"] = [{"text": "Go", "type": "text"}]
    result(request, 0).update(
        content=[{"type": "text", "text": "Result 0.", "cache_control": MARK}], cache_control=MARK
    )
    said(request, 1)[1] = {"text": "There.", "type": "text"}
    request["messages"][1:2] = [{"role": "assistant", "content": [block]} for block in said(request, 0)]


def grow(request: Body) -> None:
    request["messages"][-1]["content"].append({"type": "text", "text": "And now?"})
    request["messages"] += [{"role": "assistant", "content": "That."}, {"role": "user", "content": "Thanks."}]


def age(request: Body) -> None:
    """One thought, of an older model."""
    said(request, 0)[:2] = [{"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.")}]
    for k in (1, 2):
        said(request, k).pop(0)


# the change, and which thought is no longer taken
FAILING: dict[str, tuple[Change, str]] = {
    "an earlier result": (cut, "messages.5.content.0"),
    "the first result": (lambda b: result(b, 0).update(content="[cut]"), "messages.3.content.0"),
    "a result that is an error now": (lambda b: result(b, 0).update(is_error=True), "messages.3.content.0"),
    "words beside a result": (
        lambda b: b["messages"][2]["content"].append({"type": "text", "text": "Go on"}),
        "messages.3.content.0",
    ),
    "the system text": (lambda b: b.update(system="Be brief!"), "messages.1.content.0"),
    "one more tool": (lambda b: b["tools"].append({**b["tools"][0], "name": "write"}), "messages.1.content.0"),
    "the order in a call": (lambda b: said(b, 1)[2].update(input={"a": 1, "b": 1}), "messages.5.content.0"),
    "a thought left out": (lambda b: said(b, 1).pop(0), "messages.5.content.0"),
    "the first of two left out": (lambda b: said(b, 0).pop(0), "messages.1.content.0"),
    "two in the other order": (lambda b: said(b, 0).insert(0, said(b, 0).pop(1)), "messages.1.content.0"),
    "a turn left out": (lambda b: b["messages"].__delitem__(slice(1, 3)), "messages.1.content.0"),
    "a message before all": (
        lambda b: b["messages"].insert(0, {"role": "user", "content": "Hi"}),
        "messages.2.content.0",
    ),
}
TAKEN: dict[str, Change] = {
    "as it is": lambda b: None,
    "in other words": spread,
    "a longer history": grow,
    "the last result, which no thought follows": lambda b: result(b, 2).update(content="Other."),
    "the last thoughts left out": lambda b: said(b, 2).pop(0),
    "no thought at all": lambda b: [said(b, k).pop(0) for k in (0, 0, 1, 2)],
    "omitted texts": lambda b: [block.update(thinking="") for block in said(b, 0)[:2]],
    "a signature that an older model gave": age,
}


def uncounted(request: Body) -> Body:
    return {key: value for key, value in request.items() if key != "max_tokens"}


async def test_a_thought_is_taken_back_behind_its_own_prompt_alone(claude: Claude) -> None:
    request = await session(claude)
    for name, (change, at) in FAILING.items():
        changed = deepcopy(request)
        change(changed)
        for ask in (claude.messages.create(**changed), claude.messages.count_tokens(**uncounted(changed))):
            with pytest.raises(anthropic.BadRequestError) as caught:
                await ask
            why = (
                f"{at}: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove"
            )
            assert why in caught.value.message, name
    for change in TAKEN.values():
        changed = deepcopy(request)
        change(changed)
        heard = await claude.messages.create(**changed)
        assert "input_transformations" not in heard.model_dump()


async def test_older_models_bind_nothing(claude: Claude) -> None:
    request = await session(claude, "claude-opus-5")
    signatures = [block["signature"] for k in range(3) for block in said(request, k) if block["type"] == "thinking"]
    assert signatures == [sign(thought) for each in SAID[:3] for thought in each.thinking]
    for change, _ in FAILING.values():
        changed = deepcopy(request)
        change(changed)
        await claude.messages.create(**changed)


async def test_what_is_dropped_is_reported_and_not_counted(claude: Claude) -> None:
    request = await session(claude)
    result(request, 0)["content"] = "[cut]"
    request |= {"thinking": DROP}
    beta, fields = claude.beta.messages, {**request, "betas": ["another-2026-01-01", CONTROLS]}
    heard = await beta.create(**fields)
    async with beta.stream(**fields) as stream:
        streamed = await stream.get_final_message()
    counted = await beta.count_tokens(**uncounted(fields))
    assert [told.model_dump() for told in heard.input_transformations or ()] == [
        {"path": f"messages.{i}.content.0", "reason": "prefix_binding_mismatch", "type": "thinking_dropped"}
        for i in (3, 5)
    ]
    assert streamed.input_transformations == heard.input_transformations
    bare = deepcopy(fields)
    for k in (1, 2):
        said(bare, k).pop(0)
    assert counted.input_tokens == heard.usage.input_tokens == (await beta.count_tokens(**uncounted(bare))).input_tokens

    # what is thought behind the changed history is taken back there, beside what is dropped
    fields["messages"] += [
        {"role": "assistant", "content": [block.model_dump() for block in heard.content]},
        {"role": "user", "content": "Thanks."},
    ]
    again = await beta.create(**fields)
    assert again.input_transformations == heard.input_transformations


async def test_a_message_that_held_nothing_else_goes_and_so_do_the_thoughts_beside_one(claude: Claude) -> None:
    request = await session(claude)
    first, second = said(request, 0)[:2]
    del said(request, 0)[:2]
    bare = deepcopy(request)
    redacted = {"type": "redacted_thinking", "data": "abc"}
    older = {**first, "signature": sign("Where is it?")}
    request["messages"][:0] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [second, redacted, older]},
    ]
    heard = await claude.beta.messages.create(**request, thinking=DROP, betas=[CONTROLS])
    places = [told.path.removeprefix("messages.") for told in heard.input_transformations or ()]
    assert places == ["1.content.0", "1.content.1", "1.content.2", "5.content.0", "7.content.0"]
    bare["messages"].insert(0, {"role": "user", "content": "Hello"})
    for message in (bare["messages"][4], bare["messages"][6]):
        message["content"].pop(0)
    counted = await claude.messages.count_tokens(**uncounted(bare))
    assert heard.usage.input_tokens == counted.input_tokens


@pytest.mark.parametrize(
    ("thinking", "header", "words"),
    [
        (DROP, "", "thinking.adaptive.block_binding: Extra inputs are not permitted"),
        ({**DROP, "block_binding": None}, "another", "thinking.adaptive.block_binding: Extra inputs are not permitted"),
        ({"type": "disabled", "block_binding": {}}, CONTROLS, "thinking.disabled.block_binding: Extra inputs"),
        ({**DROP, "block_binding": "drop_block"}, CONTROLS, "block_binding: Input should be a valid dictionary"),
        ({**DROP, "block_binding": {"x": 1}}, CONTROLS, "thinking.adaptive.block_binding.x: Extra inputs"),
        (
            {**DROP, "block_binding": {"prefix_mismatch_behavior": "drop"}},
            CONTROLS,
            "prefix_mismatch_behavior: Input should be 'error' or 'drop_block'",
        ),
        ({**DROP, "block_binding": {"prefix_mismatch_behavior": "error"}}, CONTROLS, "messages.5.content.0: Invalid"),
        ({**DROP, "block_binding": {}}, CONTROLS, "messages.5.content.0: Invalid `signature` in `thinking` block. The"),
        (None, CONTROLS, "messages.5.content.0: Invalid `signature` in `thinking` block. The block is bound"),
    ],
)
async def test_dropping_is_asked_for_in_the_right_words(
    claude: Claude, thinking: object, header: str, words: str
) -> None:
    request = await session(claude)
    cut(request)
    with pytest.raises(anthropic.BadRequestError) as caught:
        await claude.messages.create(
            **request, extra_body={"thinking": thinking}, extra_headers={"anthropic-beta": header}
        )
    assert words in caught.value.message
