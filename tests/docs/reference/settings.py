"""All settings, in the groups of `narrows serve --help`, and the fields of the rows that some of them hold."""

from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from proxy.config import KeyRow
from proxy.config.groups.compaction import SummarizerSettings, SummaryBudget
from proxy.config.settings import GROUPS
from proxy.config.upstreams import UpstreamRow
from proxy.console.options import default_in_words
from tests.docs.reference.markdown import items

INTRODUCTION = """\
# Settings

[Configuration](../README.md#configuration) says where settings stand, and how to write durations, sizes, lists and
tables. Defaults stand in brackets."""
ROWS: Mapping[str, type[BaseModel]] = {
    "One entry of `upstreams`": UpstreamRow,
    "One entry of `keys`": KeyRow,
    "One entry of `summarizers`": SummarizerSettings,
    "The parts of `summary_budget`": SummaryBudget,
}


def page() -> str:
    """The page."""
    return "\n\n".join([INTRODUCTION, *_parts()]) + "\n"


def _parts() -> Iterator[str]:
    for group in GROUPS:
        yield f"## {group.__doc__}"
        yield _list(group)
    for heading, row in ROWS.items():
        yield f"## {heading}"
        yield _list(row)
    yield "Rules and presets of your own are shown in [presets and rules](../README.md#presets-and-rules)."


def _list(model: type[BaseModel]) -> str:
    """Each field with its default, where it has one, and its meaning."""
    fields = model.model_fields.items()
    return items(f"`{name}`{_default(field)}: {field.description}" for name, field in fields)


def _default(field: FieldInfo) -> str:
    words = default_in_words(field)
    if field.is_required():
        return " (needed)"
    return f" ({words})" if field.json_schema_extra else f" (`{words}`)" if words else ""
