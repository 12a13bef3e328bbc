"""LiteLLM's SDK."""

import litellm
from common import BASE_URL, BASH, HEADERS, KEY, MODEL, STREAM, TASKS, called

history = [{"role": "system", "content": "You are careful."}]
for task in TASKS:
    history.append({"role": "user", "content": task})
    while True:
        request = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": KEY, "messages": history}
        request |= {"tools": [{"type": "function", "function": BASH}], "extra_headers": HEADERS, "num_retries": 0}
        if STREAM:
            reply = litellm.stream_chunk_builder([*litellm.completion(**request, stream=True)])
        else:
            reply = litellm.completion(**request)
        message = reply.choices[0].message
        history.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            text = called(call.function.name, call.function.arguments)
            history.append({"role": "tool", "tool_call_id": call.id, "content": text})
    print(message.content)
