"""OpenAI Agents: chat completions and Responses."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import API, BASE_URL, FUNCTIONS, KEY, MODEL, MOST_STEPS, STREAM, TASKS
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
kind = {"openai_chat": OpenAIChatCompletionsModel, "openai_responses": OpenAIResponsesModel}[API]
settings = ModelSettings()
if API == "openai_responses":
    settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
model = kind(model=MODEL, openai_client=client)
agent = Agent(name="careful", model=model, tools=[*map(function_tool, FUNCTIONS)], model_settings=settings)


async def main():
    history = []
    for task in TASKS:
        history.append({"role": "user", "content": task})
        if STREAM:
            result = Runner.run_streamed(agent, history, max_turns=MOST_STEPS)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, history, max_turns=MOST_STEPS)
        print(result.final_output)
        history = result.to_input_list()


asyncio.run(main())
