"""The clients: one row each and API. What a person sets is told in proxy/console/README.md."""

from dataclasses import replace
from functools import partial

from tests.long.clients import programs
from tests.long.clients.client import Client, Package, Relay, function

CHAT, RESPONSES, MESSAGES = "openai_chat", "openai_responses", "anthropic_messages"
CLAUDE = "claude-sonnet-4-5"

OPENAI, NPM_OPENAI = Package("pypi", ["openai"]), Package("npm", ["openai"])
ANTHROPIC, NPM_ANTHROPIC = Package("pypi", ["anthropic"]), Package("npm", ["@anthropic-ai/sdk"])
AI_SDK = Package("npm", ["ai", "@ai-sdk/openai-compatible", "zod"])
LANGCHAIN = Package("pypi", ["langchain", "langchain-openai", "langchain-anthropic"])
LANGCHAIN_MCP = Package("pypi", ["langchain-mcp-adapters", *LANGCHAIN.names])
LANGGRAPH = Package("pypi", ["langgraph", "langchain-openai"])
DEEPAGENTS = Package("pypi", ["deepagents", "langchain-openai"])
PYDANTIC_AI = Package("pypi", ["pydantic-ai-slim[openai,anthropic]"])
AGENTS = Package("pypi", ["openai-agents"])
LITELLM = Package("pypi", ["litellm[proxy]"])
LLM = Package("pypi", ["llm"])
SMOLAGENTS = Package("pypi", ["smolagents[openai]"])
MINI = Package("pypi", ["mini-swe-agent", "mcp"])
AIDER = Package("pypi", ["aider-chat"])
CODEX, OPENCODE = Package("npm", ["@openai/codex"]), Package("npm", ["opencode-ai"])
PORTKEY = Package("npm", ["@portkey-ai/gateway"])
CLAUDE_CODE = Package("npm", ["@anthropic-ai/claude-code"], unaccepted="Anthropic's commercial terms")

OPENAI_SCRIPT, ANTHROPIC_SCRIPT = ("python", "openai_sdk.py"), ("python", "anthropic_sdk.py")
LANGCHAIN_SCRIPT, PYDANTIC_SCRIPT = ("python", "langchain_agent.py"), ("python", "pydantic_agent.py")
AGENTS_SCRIPT, LITELLM_SCRIPT = ("python", "openai_agent.py"), ("python", "litellm_sdk.py")
NAMED = {"x-narrows-conversation": "the-task"}
"""What a client says to Narrows, whatever stands in front."""
ASKING = {"x-litellm-user_api_key_user_id": "default_user_id"}
"""Who asks, as LiteLLM calls the holder of its master key."""
PORTKEYS = {
    "x-portkey-provider": "openai",
    "x-portkey-custom-host": "{asked}",
    "x-portkey-forward-headers": "x-narrows-conversation",
}

LangchainMcp = partial(
    Client, "LangChain with MCP adapters", package=LANGCHAIN_MCP, words=("python", "langchain_mcp.py")
)
Opencode = partial(
    Client,
    "opencode",
    package=OPENCODE,
    words=("opencode", "run"),
    again=("opencode", "run", "--continue"),
    configured=programs.opencode,
    command=programs.opencode_bash,
)

_CLIENTS = (
    Client("OpenAI SDK, Python", CHAT, OPENAI, OPENAI_SCRIPT),
    Client("OpenAI SDK, Python", CHAT, OPENAI, OPENAI_SCRIPT, streams=False),
    Client("OpenAI SDK, Python", RESPONSES, OPENAI, OPENAI_SCRIPT),
    Client("OpenAI SDK, TypeScript", CHAT, NPM_OPENAI, ("node", "openai_sdk.mjs"), streams=False),
    Client("OpenAI SDK, TypeScript", RESPONSES, NPM_OPENAI, ("node", "openai_sdk.mjs")),
    Client("Anthropic SDK, Python", MESSAGES, ANTHROPIC, ANTHROPIC_SCRIPT, model=CLAUDE),
    Client("Anthropic SDK, Python", MESSAGES, ANTHROPIC, ANTHROPIC_SCRIPT, model=CLAUDE, streams=False),
    Client("Anthropic SDK, TypeScript", MESSAGES, NPM_ANTHROPIC, ("node", "anthropic_sdk.mjs"), model=CLAUDE),
    Client("AI SDK", CHAT, AI_SDK, ("node", "ai_sdk.mjs")),
    Client("AI SDK", CHAT, AI_SDK, ("node", "ai_sdk.mjs"), streams=False),
    Client("LangChain", CHAT, LANGCHAIN, LANGCHAIN_SCRIPT),
    Client("LangChain", RESPONSES, LANGCHAIN, LANGCHAIN_SCRIPT, streams=False),
    Client("LangChain", MESSAGES, LANGCHAIN, LANGCHAIN_SCRIPT, model=CLAUDE),
    LangchainMcp(CHAT),
    LangchainMcp(RESPONSES, streams=False),
    LangchainMcp(MESSAGES, model=CLAUDE),
    Client("LangGraph", CHAT, LANGGRAPH, ("python", "langgraph_graph.py"), streams=False),
    Client("deepagents", CHAT, DEEPAGENTS, ("python", "deep_agent.py")),
    Client("pydantic-ai", CHAT, PYDANTIC_AI, PYDANTIC_SCRIPT),
    Client("pydantic-ai", RESPONSES, PYDANTIC_AI, PYDANTIC_SCRIPT, streams=False),
    Client("pydantic-ai", MESSAGES, PYDANTIC_AI, PYDANTIC_SCRIPT, model=CLAUDE, streams=False),
    Client("OpenAI Agents", CHAT, AGENTS, AGENTS_SCRIPT, streams=False),
    Client("OpenAI Agents", RESPONSES, AGENTS, AGENTS_SCRIPT),
    Client("LiteLLM SDK", CHAT, LITELLM, LITELLM_SCRIPT),
    Client(
        "LiteLLM proxy in front",
        CHAT,
        LITELLM,
        OPENAI_SCRIPT,
        front=Relay(LITELLM, "litellm_proxy.py"),
        headers=NAMED,
        arrives=NAMED | ASKING,
    ),
    Client("LiteLLM proxy behind", CHAT, LITELLM, OPENAI_SCRIPT, behind=Relay(LITELLM, "litellm_proxy.py")),
    Client(
        "LiteLLM proxy behind",
        MESSAGES,
        ANTHROPIC,
        ANTHROPIC_SCRIPT,
        behind=Relay(LITELLM, "litellm_proxy.py"),
        model=CLAUDE,
    ),
    Client(
        "Portkey in front",
        CHAT,
        OPENAI,
        OPENAI_SCRIPT,
        front=Relay(PORTKEY, "portkey.mjs"),
        streams=False,
        headers=NAMED | PORTKEYS,
        arrives=NAMED,
    ),
    Client(
        "llm",
        CHAT,
        LLM,
        ("llm", "-m", "narrows", "--functions", programs.LLM_TOOL, "--chain-limit", "60"),
        ("llm", "-m", "narrows", "--functions", programs.LLM_TOOL, "--chain-limit", "60", "-c"),
        configured=programs.llm,
    ),
    Client("smolagents", CHAT, SMOLAGENTS, ("python", "smol_agent.py"), end=programs.final_answer, hides=False),
    Client(
        "mini-swe-agent",
        CHAT,
        MINI,
        ("mini", "-m", "openai/gpt-5.4", "-y", "--exit-immediately", "-l", "0", "-t"),
        streams=False,
        continues=False,
        configured=programs.mini,
        end=programs.submitted,
    ),
    Client("aider", CHAT, AIDER, ("python", "aider_chat.py"), calls=False),
    Client(
        "Codex",
        RESPONSES,
        CODEX,
        ("codex", "exec", *programs.ALWAYS),
        ("codex", "exec", "resume", "--last", *programs.ALWAYS),
        model="gpt-5.5",
        configured=programs.codex,
        command=lambda command: function("exec_command", cmd=command),
        write=programs.by_custom_tool,
    ),
    Opencode(CHAT, model="gpt-4.1", write=programs.by_write),
    Opencode(RESPONSES, model="gpt-5.5", write=programs.by_patch),
    Opencode(MESSAGES, model=CLAUDE, write=programs.by_write),
    Client(
        "Claude Code",
        MESSAGES,
        CLAUDE_CODE,
        ("claude", "--permission-mode", "acceptEdits", "--allowedTools", "Bash,Write", "-p"),
        ("claude", "--permission-mode", "acceptEdits", "--allowedTools", "Bash,Write", "--continue", "-p"),
        model=CLAUDE,
        configured=programs.claude_code,
        command=programs.claude_bash,
        write=programs.claude_write,
    ),
)
_SCRIPTS = ("OpenAI SDK, Python", "Anthropic SDK, Python", "LangChain", "pydantic-ai", "OpenAI Agents")
_DEFER = (*_SCRIPTS, "LangChain with MCP adapters", "Codex", "opencode", "Claude Code")
_LATER = {"opencode": [programs.of_server("many_")], "LangChain with MCP adapters": [programs.of_server()]}
CLIENTS = (
    *_CLIENTS,
    *(replace(each, defers=True, later=_LATER.get(each.name, ())) for each in _CLIENTS if each.name in _DEFER),
)
