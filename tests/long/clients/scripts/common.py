"""What every script of a client is given: the address, the model, the API, the tasks, and one tool, or many more."""

import json
import os
import subprocess
import sys

BASE_URL = os.environ["BASE_URL"]
KEY = os.environ["AGENT_KEY"]
MODEL = os.environ["MODEL"]
API = os.environ["API"]
STREAM = bool(os.environ["STREAM"])
HEADERS = json.loads(os.environ["HEADERS"])
TASKS = sys.argv[1:]
MOST_STEPS = 60
BASH = {
    "name": "bash",
    "description": "Run a command in the shell, and get what it prints.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def bash(command: str) -> str:
    """Run a command in the shell, and get what it prints."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout  # noqa: S602


def called(name: str, arguments: str) -> str:
    """The output of a call of the tool; any other tool is none of the client's."""
    assert name == "bash", name
    return bash(**json.loads(arguments))


def other(deed, thing):
    """A tool that few need."""

    def tool(identifier: str, reason: str) -> str:
        return f"the {thing} {identifier}: done"

    tool.__name__ = f"{deed}_{thing}"
    tool.__doc__ = (
        f"The way to {deed} a {thing} of this account. " + f"It works on the {thing} records there are. " * 10
    )
    return tool


def definition(function):
    names = ("identifier", "reason")
    parameters = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": [*names]}
    return {"name": function.__name__, "description": function.__doc__, "parameters": parameters}


THINGS = ("issue", "invoice", "station", "ticket", "calendar", "branch", "shipment", "contract", "sensor", "recipe")
OTHERS = [other(deed, thing) for deed in ("create", "list", "archive", "rename") for thing in THINGS]
FUNCTIONS = [bash, *(OTHERS if os.environ["MANY_TOOLS"] else ())]
DEFINITIONS = [BASH, *map(definition, FUNCTIONS[1:])]
