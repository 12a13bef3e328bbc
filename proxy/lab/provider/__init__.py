"""The built-in provider: a small strict server of three APIs for the demo, for replays and for the tests.

jsontext    JSON, strict and fast first, tolerant where real providers are
signatures  signatures and encrypted content: what comes back unchanged or is refused
prompt      a prompt as the blocks that its provider's cache sees
cache       from a request to its prompt; what a prompt cache reads and writes, by prefix or by breakpoint
answers     what can be answered, and how it travels
api         the common parts of the APIs: rules, how clients write, the class of an API
apis        one API each: its rules, its prompts, its replies
server      the provider, without I/O
listener    the same on a port
extractive  summaries and digests made of lines of their text, which stand in for a model's
"""

from policies.money.caches import ANTHROPIC, OPENAI, PREFIX, CacheRule, rule_for
from proxy.lab.provider.answers import Abort, Answer, ProviderReply, Reflect, Say, Send, Wire
from proxy.lab.provider.api import Violation
from proxy.lab.provider.cache import PromptCache, PromptReader
from proxy.lab.provider.listener import Running, start
from proxy.lab.provider.prompt import ProviderPrompt
from proxy.lab.provider.server import APIS, TURN_HEADER, Provider, Received, Script, find_violation

__all__ = [
    "ANTHROPIC", "APIS", "OPENAI", "PREFIX", "TURN_HEADER", "Abort", "Answer", "CacheRule", "PromptCache",
    "PromptReader", "Provider", "ProviderPrompt", "ProviderReply", "Received", "Reflect", "Running", "Say", "Script",
    "Send", "Violation", "Wire", "find_violation", "rule_for", "start",
]  # fmt: skip
