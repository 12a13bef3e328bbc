"""Lists in Markdown."""

from collections.abc import Iterable
from textwrap import TextWrapper

_WRAPPER = TextWrapper(120, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def items(texts: Iterable[str]) -> str:
    """A list of these texts, in lines as long as those of the other pages."""
    return "\n".join(map(_WRAPPER.fill, texts))
