"""The setting `keep`: patterns for what is never edited."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from policies.keep import Patterns, patterns_of
from proxy.config.errors import refused


def _checked(values: Sequence[str]) -> Patterns:
    try:
        return patterns_of(values)
    except ValueError as error:
        raise refused("pattern", str(error)) from error


KeepPatterns = Annotated[tuple[str, ...], AfterValidator(_checked)]
KEEP = Field(
    default=(),
    description="what Narrows never edits: tools and paths, as read_file, mcp__db__* or *.sql, and texts, as "
    "text:ACME-42",
)
