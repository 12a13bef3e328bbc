"""Tools: what kind each is, and what its calls do to files. One file for each thing that tells it."""

from policies.tools.arguments import arguments_of as arguments_of
from policies.tools.arguments import recalled_ref as recalled_ref
from policies.tools.calls import Toolbox as Toolbox
from policies.tools.calls import ToolSpec as ToolSpec
from policies.tools.calls import kind_by_schema as kind_by_schema
from policies.tools.calls import kind_of as kind_of
from policies.tools.calls import kinds_by_schema as kinds_by_schema
from policies.tools.calls import known_by as known_by
from policies.tools.calls import path_of as path_of
from policies.tools.calls import paths_of as paths_of
from policies.tools.calls import rewrites as rewrites
from policies.tools.calls import shell_command as shell_command
from policies.tools.calls import subject_of as subject_of
from policies.tools.calls import writes as writes
from policies.tools.kinds import FILES as FILES
from policies.tools.kinds import HEAD as HEAD
from policies.tools.kinds import OURS as OURS
from policies.tools.kinds import RECALL as RECALL
from policies.tools.kinds import SEARCH as SEARCH
from policies.tools.kinds import Kinds as Kinds
from policies.tools.kinds import ToolKind as ToolKind
from policies.tools.kinds import WayBack as WayBack
