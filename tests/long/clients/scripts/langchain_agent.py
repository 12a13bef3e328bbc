"""LangChain's agent with functions as its tools."""

from common import FUNCTIONS, MOST_STEPS, TASKS
from langchain.agents import create_agent
from langchain_models import model
from langgraph.checkpoint.memory import InMemorySaver

agent = create_agent(model, tools=FUNCTIONS, checkpointer=InMemorySaver())
for task in TASKS:
    config = {"configurable": {"thread_id": "1"}, "recursion_limit": 2 * MOST_STEPS}
    result = agent.invoke({"messages": [{"role": "user", "content": task}]}, config)
    print(result["messages"][-1].text)
