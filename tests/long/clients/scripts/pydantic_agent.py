"""pydantic-ai: chat completions, Responses and Messages."""

import asyncio

from common import API, BASE_URL, FUNCTIONS, KEY, MODEL, STREAM, TASKS
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

openai = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
settings = None
if API == "openai_chat":
    model = OpenAIChatModel(MODEL, provider=openai)
elif API == "openai_responses":
    model = OpenAIResponsesModel(MODEL, provider=openai)
    settings = OpenAIResponsesModelSettings(openai_store=False, openai_include_raw_annotations=False)
else:
    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY))
    settings = AnthropicModelSettings(max_tokens=4096, anthropic_thinking={"type": "enabled", "budget_tokens": 1024})
agent = Agent(model, tools=FUNCTIONS, model_settings=settings, retries=0)


async def heard(_, events):
    """What streams; the agent puts it together."""
    async for _ in events:
        pass


async def main():
    history = []
    for task in TASKS:
        handler = heard if STREAM else None
        result = await agent.run(task, message_history=history, event_stream_handler=handler)
        print(result.output)
        history = result.all_messages()


asyncio.run(main())
