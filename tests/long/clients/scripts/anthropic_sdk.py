"""The official SDK of Anthropic, with thinking."""

from anthropic import Anthropic
from common import BASE_URL, DEFINITIONS, KEY, MODEL, STREAM, TASKS, bash

client = Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY, max_retries=0)
TOOLS = [
    {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
    for each in DEFINITIONS
]
history = []
for task in TASKS:
    history.append({"role": "user", "content": task})
    while True:
        request = {"model": MODEL, "max_tokens": 4096, "messages": history, "tools": TOOLS}
        request["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if STREAM:
            with client.messages.stream(**request) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**request)
        history.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        assert {call.name for call in calls} <= {"bash"}
        if not calls:
            break
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": bash(**call.input)} for call in calls]
        history.append({"role": "user", "content": results})
    print("".join(block.text for block in message.content if block.type == "text"))
