"""smolagents: an agent that calls tools, and ends with one of its own."""

from common import BASE_URL, KEY, MODEL, MOST_STEPS, STREAM, TASKS
from common import bash as run
from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def bash(command: str) -> str:
    """Run a command in the shell, and get what it prints.

    Args:
        command: what to run
    """
    return run(command)


model = OpenAIServerModel(model_id=MODEL, api_base=BASE_URL, api_key=KEY)
agent = ToolCallingAgent(tools=[bash], model=model, max_steps=MOST_STEPS, stream_outputs=STREAM)
for number, task in enumerate(TASKS):
    print(agent.run(task, reset=number == 0))
