"""The built-in provider: a small strict OpenAI-compatible server for the demo, for replays and for the tests.

jsontext   JSON, strict and fast first, tolerant where real providers are
prompt     a request as the blocks its provider's cache sees
cache      what a prompt cache reads and writes, by prefix or by breakpoint
rules      what is answered with 400
answers    what can be answered, and the bytes of it
summarist  summaries of transcripts, copied together by rule
server     the provider, and the shell that listens
"""

from proxy.provider.answers import Abort, Answer, Reflect, Reply, Say, Send, Wire
from proxy.provider.cache import ANTHROPIC, OPENAI, PREFIX, CacheRule, PromptCache, rule_for
from proxy.provider.prompt import Prompt, PromptReader
from proxy.provider.rules import Violation, violations
from proxy.provider.server import TURN_HEADER, Provider, Received, Running, Script, start

__all__ = [
    "ANTHROPIC",
    "OPENAI",
    "PREFIX",
    "TURN_HEADER",
    "Abort",
    "Answer",
    "CacheRule",
    "Prompt",
    "PromptCache",
    "PromptReader",
    "Provider",
    "Received",
    "Reflect",
    "Reply",
    "Running",
    "Say",
    "Script",
    "Send",
    "Violation",
    "Wire",
    "rule_for",
    "start",
    "violations",
]
