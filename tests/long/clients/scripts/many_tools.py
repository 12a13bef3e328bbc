"""A server of tools for a client that speaks the Model Context Protocol: one request a line, on standard input."""

import json
import sys

from common import OTHERS, definition


def result(method, parameters):
    if method == "initialize":
        version = parameters["protocolVersion"]
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "many", "version": "1"},
        }
    if method == "tools/list":
        tools = [definition(each) for each in OTHERS]
        return {"tools": [{"inputSchema": each.pop("parameters"), **each} for each in tools]}
    if method == "tools/call":
        (tool,) = [each for each in OTHERS if each.__name__ == parameters["name"]]
        return {"content": [{"type": "text", "text": tool(**parameters["arguments"])}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = result(message["method"], message.get("params"))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)
