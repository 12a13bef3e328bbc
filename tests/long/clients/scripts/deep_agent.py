"""deepagents, with its own tools beside ours."""

from common import BASE_URL, KEY, MODEL, MOST_STEPS, STREAM, TASKS, bash
from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY, max_retries=0, streaming=STREAM)
agent = create_deep_agent(model=model, tools=[bash], checkpointer=InMemorySaver())
for task in TASKS:
    config = {"configurable": {"thread_id": "1"}, "recursion_limit": 10 * MOST_STEPS}
    result = agent.invoke({"messages": [{"role": "user", "content": task}]}, config)
    print(result["messages"][-1].text)
