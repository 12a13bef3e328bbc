"""LangChain's agent with one function, and all tools of a server that it speaks the Model Context Protocol with."""

import asyncio
import os
import sys
from pathlib import Path

from common import MOST_STEPS, TASKS, bash
from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_models import model
from langgraph.checkpoint.memory import InMemorySaver

SERVER = {
    "transport": "stdio",
    "command": sys.executable,
    "args": [str(Path(__file__).with_name("many_tools.py"))],
    "env": dict(os.environ),
}


async def main():
    async with MultiServerMCPClient({"many": SERVER}).session("many") as session:
        tools = [bash, *await load_mcp_tools(session)]
        agent = create_agent(model, tools=tools, checkpointer=InMemorySaver())
        for task in TASKS:
            config = {"configurable": {"thread_id": "1"}, "recursion_limit": 2 * MOST_STEPS}
            result = await agent.ainvoke({"messages": [{"role": "user", "content": task}]}, config)
            print(result["messages"][-1].text)


asyncio.run(main())
