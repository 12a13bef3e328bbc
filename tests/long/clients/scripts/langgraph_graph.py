"""A graph of LangGraph: a node that asks the model, one that runs its tools, and a checkpointer."""

from common import BASE_URL, KEY, MODEL, MOST_STEPS, STREAM, TASKS, bash
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

options = {"model": MODEL, "base_url": BASE_URL, "api_key": KEY, "max_retries": 0, "streaming": STREAM}
model = ChatOpenAI(**options).bind_tools([bash])
graph = StateGraph(MessagesState)
graph.add_node("ask", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([bash]))
graph.add_edge(START, "ask")
graph.add_conditional_edges("ask", tools_condition)
graph.add_edge("tools", "ask")
agent = graph.compile(checkpointer=InMemorySaver())
for task in TASKS:
    config = {"configurable": {"thread_id": "1"}, "recursion_limit": 2 * MOST_STEPS}
    result = agent.invoke({"messages": [{"role": "user", "content": task}]}, config)
    print(result["messages"][-1].text)
