"""Named lists of policies with their parameters: what may go, and when each policy wants it.

The order is severity, cheapest first. Figures come from measurements on recorded sessions; the README says how to
repeat them.
"""

from collections.abc import Mapping
from functools import partial

from policies.abridge import abridge
from policies.clip import clip
from policies.context import Policy
from policies.dedupe import dedupe
from policies.offload import offload
from policies.trim import trim

_COMMON: tuple[Policy, ...] = (
    partial(dedupe, over=60),
    partial(clip, over=150, keep=5, keep_writes=30),
    partial(offload, over=300, keep=5, keep_files=8, matters=30),
)
_LAST: tuple[Policy, ...] = (partial(trim, keep=5),)

PRESETS: Mapping[str, tuple[Policy, ...]] = {
    "coding-agent": (*_COMMON, partial(abridge, over=150, keep=5, keep_code=30, share=0.15), *_LAST),
    "gentle": (*_COMMON, *_LAST),
}


def described(policies: tuple[Policy, ...]) -> str:
    """The policies and their parameters, the same in every process."""
    return "; ".join(f"{p.func.__name__} {sorted(p.keywords.items())}" for p in policies if isinstance(p, partial))
