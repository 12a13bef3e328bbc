"""How a model is asked to write a text, as summaries are, in the words of an API; and how its answer is read."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.text.summary_checks import End

Json = Mapping[str, Any]
_SLACK = 1.25
"""How many times the tokens wanted may be generated: an answer that is a little too long is still complete."""
_THINKING = 8_192
"""Tokens more for a model that thinks before it answers, as thoughts count. Tokens that are not used cost nothing."""
_COMPLETION_LIMITED = re.compile(r"(?:ft:)?(?:o\d|gpt-(?:[5-9]|\d\d)|codex-)", re.I)
"""Names, without a vendor before them, of OpenAI's models that think: they take `max_completion_tokens` and refuse
`max_tokens`, which compatible APIs take."""
_THINKS = re.compile(
    r"reason|think|gpt-oss|qwq|qwen3|magistral|-r1|deepseek-v|kimi-k|glm-\d|minimax-m|grok-[3-9]|gemini-(?:2\.5|[3-9])"
    r"|claude-(?!3|2|instant)",
    re.I,
)
"""Others that may think. Anthropic's older models do not, and refuse so high a limit."""
_THOUGHT = re.compile(r"\s*<(think(?:ing)?)>", re.I)


@dataclass(frozen=True, kw_only=True, eq=False)
class Writing:
    """How an API is asked to write."""

    bodies: Callable[[str, str, str, int], Sequence[Json]]
    """The request to a model, with instructions over a text, for an answer of at most so many tokens. Where the
    upstream refuses a field by its name that the next one has not, the next one is sent."""
    answer: Callable[[Json], tuple[str, End]]
    """The text of a reply, and how it ended. Raises msgspec.ValidationError or IndexError where the reply has none."""


def is_completion_limited(model: str) -> bool:
    """Whether it is one of OpenAI's models that think."""
    return _COMPLETION_LIMITED.match(model.rpartition("/")[2]) is not None


def limit(most: int, model: str, thinks: bool = False) -> int:
    """Tokens that may be generated for an answer of `most`, by a model that thinks for certain or by its name."""
    return int(most * _SLACK) + (_THINKING if thinks or _THINKS.search(model) else 0)


def text_of(parts: Sequence[Json]) -> str:
    """Their text without the thoughts that some models write before it; empty where nothing follows them."""
    text = "".join(str(part.get("text") or "") for part in parts)
    opened = _THOUGHT.match(text)
    if opened is None:
        return text.strip()
    return text[opened.end() :].partition(f"</{opened[1]}>")[2].strip()
