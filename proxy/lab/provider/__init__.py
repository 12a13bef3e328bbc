"""The built-in provider: a small strict server of three APIs for the demo, for replays and for the tests.

jsontext   JSON, strict and fast first, tolerant where real providers are
sealed     signatures and encrypted content: what comes back unchanged or is refused
prompt     a request as the blocks its provider's cache sees
cache      what a prompt cache reads and writes, by prefix or by breakpoint
rules      what is answered with 400, as far as it is the same everywhere
answers    what can be answered, and how it travels
chat, messages, responses   one API each: its rules, its prompts, its replies; api.py is what they have in common
apis       the table of them
summarist  summaries of transcripts, copied together by rule
server     the provider
shell      what listens
"""

from policies.money.caches import ANTHROPIC, OPENAI, PREFIX, CacheRule, rule_for
from proxy.lab.provider.answers import Abort, Answer, Reflect, Reply, Say, Send, Wire
from proxy.lab.provider.apis import APIS, PromptReader, violations
from proxy.lab.provider.cache import PromptCache
from proxy.lab.provider.prompt import Prompt
from proxy.lab.provider.rules import Violation
from proxy.lab.provider.server import TURN_HEADER, Provider, Received, Script
from proxy.lab.provider.shell import Running, start

__all__ = [
    "ANTHROPIC",
    "APIS",
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
