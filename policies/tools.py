"""What kind of tool a call went to, and what it does to files.

The kind decides how an output is shortened (the share of its head) and how soon.

Laws
  What a person configured counts first, then what the call says (a command line, a path, a pattern, an address), then
  the look of the output, then the schema of the tool. Names are a hint, used where nothing else tells.
  Linear in the arguments and the output, whatever they hold.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import msgspec

from policies import look, shell
from policies.kinds import Kinds as Kinds
from policies.kinds import ToolKind as ToolKind
from policies.keys import CONTENT, DIRECTORIES, EDITS, GLOBS, PATHS, PATTERNS, QUERIES, RANGES, SEVERAL, SHELL, SQL, URLS

RECALL = "narrows_recall"
"""The name of the one tool that is ours."""

HEAD: Mapping[ToolKind, float] = {
    "file": 0.7,
    "search": 0.5,
    "listing": 0.3,
    "command": 0.6,
    "data": 0.5,
    "web": 0.5,
}
"""The share of a shortened output that comes from its beginning."""
