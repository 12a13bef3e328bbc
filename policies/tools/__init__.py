"""Tools: what kind each is, and what its calls do to files. One file for each thing that tells it."""

from policies.tools.arguments import arguments_of
from policies.tools.calls import (
    Toolbox,
    kind_of,
    known_by,
    path_of,
    paths_of,
    rewrites,
    shell_command,
    subject_of,
    writes,
)
from policies.tools.kinds import FILES, HEAD, RECALL, Kinds, ToolKind, WayBack
from policies.tools.specs import ToolSpec, kind_by_schema, kinds_by_schema

__all__ = [
    "FILES",
    "HEAD",
    "RECALL",
    "Kinds",
    "ToolKind",
    "ToolSpec",
    "Toolbox",
    "WayBack",
    "arguments_of",
    "kind_by_schema",
    "kind_of",
    "kinds_by_schema",
    "known_by",
    "path_of",
    "paths_of",
    "rewrites",
    "shell_command",
    "subject_of",
    "writes",
]
