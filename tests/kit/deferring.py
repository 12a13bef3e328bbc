"""What the tests of deferred definitions share: a long list of tools, and models that look for one of it."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from policies.dialects import DIALECTS
from policies.tools import SEARCH
from proxy.lab.provider import Answer, Received, Say
from tests.kit.apis import Api
from tests.kit.histories import Json
from tests.kit.recalling import call
from tests.kit.speaking import Heard, Speaker

THINGS = ("issue", "invoice", "station", "ticket", "calendar", "branch", "shipment", "contract", "sensor", "recipe")
DEEDS = ("create", "list", "delete", "archive", "rename", "export")
MODELS = {"openai_chat": "m", "openai_responses": "gpt-5.4", "anthropic_messages": "claude-opus-4-6"}
"""A model in each API for which definitions can be deferred."""
ASK: Json = {"role": "user", "content": "Please tell everybody that the goods have left."}
HELLO: Json = {"role": "user", "content": "Hello."}


def tool(name: str, description: str, **parameters: str) -> Json:
    """A function in the form of chat completions."""
    properties = {key: {"type": "string", "description": about} for key, about in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def catalog(things: Sequence[str] = THINGS) -> list[Json]:
    """Six tools for each thing, each of some hundred tokens."""
    return [
        tool(
            f"{deed}_{thing}",
            f"The way to {deed} a {thing} of this account. " + f"It works on {thing} records that are there. " * 6,
            identifier=f"which {thing} is meant, by the name that stands in the register of this account",
            reason=f"why anybody would want to {deed} it, in a sentence for those who look at it later on",
        )
        for thing in things
        for deed in DEEDS
    ]


TOOLS = catalog()
DONE = Say("Done.")


def looks(query: str, id_: str = "find_1") -> Json:
    """A call of our search tool."""
    return call(id_, SEARCH, query=query)


def names_sent(received: Received, api: Api) -> list[str]:
    """The names of the tools that a request shows to its model from the beginning, in order."""
    return [name_of(each) for each in received.json.get("tools", []) if not each.get("defer_loading")]


def name_of(entry: Json) -> str:
    name: str = entry.get("function", entry).get("name") or entry["type"]
    return name


def native(api: Api, tools: Sequence[Json] = TOOLS) -> list[Json]:
    """The list as the API has it."""
    listed: list[Json] = api.body([HELLO], tools=tools)["tools"]
    return listed


async def accepted(speaker: Speaker) -> Heard:
    """A first request, so that the credential is known to be good."""
    return await speaker.hear([HELLO], tools=None, model=MODELS[speaker.api.dialect])


def finding(query: str, then: Callable[[Received], Answer] | Answer = DONE) -> Callable[[Received], Answer]:
    """A model that looks for tools once in each conversation, and then does something else."""

    def answer(received: Received) -> Answer:
        history = json.dumps(received.json[DIALECTS[received.dialect].fields.history])
        if SEARCH in json.dumps(received.json.get("tools", [])) + _kinds(received) and "find_1" not in history:
            return Say("Let me look. ", [looks(query)])
        return then(received) if callable(then) else then

    return answer


def always(answer: Answer) -> Callable[[Received], Answer]:
    """A model that says this, whatever it is asked."""
    return lambda _: answer


def _kinds(received: Received) -> str:
    kinds: list[Any] = [each.get("type") for each in received.json.get("tools", [])]
    return SEARCH if "tool_search" in kinds else ""
