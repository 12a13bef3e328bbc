"""The official SDK of OpenAI: chat completions and Responses, whole and streamed."""

from common import API, BASE_URL, DEFINITIONS, HEADERS, KEY, MODEL, STREAM, TASKS, called
from openai import OpenAI

client = OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, default_headers=HEADERS)


def chat(history):
    tools = [{"type": "function", "function": each} for each in DEFINITIONS]
    request = {"model": MODEL, "messages": history, "tools": tools}
    if STREAM:
        with client.chat.completions.stream(**request) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**request).choices[0].message
    kept = message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
    for call in kept.get("tool_calls", ()):
        call["function"].pop("parsed_arguments", None)
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return [kept], message.content, calls


def responses(history):
    request = {
        "model": MODEL,
        "input": history,
        "tools": [{"type": "function", **each, "strict": False} for each in DEFINITIONS],
        "store": False,
    }
    request["include"] = ["reasoning.encrypted_content"]
    if STREAM:
        with client.responses.stream(**request) as stream:
            for _ in stream:
                pass
            response = stream.get_final_response()
    else:
        response = client.responses.create(**request)
    items = [item.model_dump(exclude_none=True) for item in response.output]
    for item in items:
        item.pop("parsed_arguments", None)
    calls = [(i.call_id, i.name, i.arguments) for i in response.output if i.type == "function_call"]
    return items, response.output_text, calls


def output(id_, text):
    if API == "openai_chat":
        return {"role": "tool", "tool_call_id": id_, "content": text}
    return {"type": "function_call_output", "call_id": id_, "output": text}


ask = {"openai_chat": chat, "openai_responses": responses}[API]
history = [{"role": "system", "content": "You are careful."}]
for task in TASKS:
    history.append({"role": "user", "content": task})
    calls = [()]
    while calls:
        reply, text, calls = ask(history)
        history += [*reply, *(output(id_, called(name, arguments)) for id_, name, arguments in calls)]
    print(text)
