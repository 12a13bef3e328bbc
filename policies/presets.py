"""Named lists of policies with their parameters: what may go, and when each policy wants it.

The order is severity, cheapest first. Figures come from measurements on recorded sessions; the README says how to
repeat them.
"""

from collections.abc import Mapping
from functools import partial

from policies.abridge import abridge
from policies.clip import clip
from policies.collapse import collapse
from policies.context import Policy
from policies.dedupe import dedupe
from policies.offload import offload
from policies.summarize import Trigger, summarize
from policies.trim import trim

_DEDUPE: Policy = partial(dedupe, over=60)
_OFFLOAD: Policy = partial(offload, over=250, keep=5, keep_files=8, matters=30)
_COLLAPSE: Policy = partial(collapse, keep=5)
_LAST: Policy = partial(trim, keep=5)

_ROLLING: Policy = partial(
    summarize,
    keep=6,
    keep_after=4,
    when=(Trigger(tokens=12_000), Trigger(window=0.6)),
    batch=6_000,
    words=2_000,
    generations=5,
    long=8_000,
)

_CODING: tuple[Policy, ...] = (
    _DEDUPE,
    _COLLAPSE,
    partial(clip, over=150, keep=5, keep_writes=30),
    _OFFLOAD,
    partial(abridge, over=100, keep=5, keep_code=20, share=0.15),
)

PRESETS: Mapping[str, tuple[Policy, ...]] = {
    "coding-agent": (*_CODING, _LAST),
    # the model's own prose stays whole; arguments make up for a little of it
    "gentle": (_DEDUPE, _COLLAPSE, partial(clip, over=150, keep=5, keep_writes=20), _OFFLOAD, _LAST),
    # besides, a model sums up old turns: it costs calls, and takes a little out of sight
    "rolling": (*_CODING, _ROLLING, _LAST),
    # prose stays whole until a summary stands for it
    "chat": (_DEDUPE, _COLLAPSE, _OFFLOAD, _ROLLING, _LAST),
}


def described(policies: tuple[Policy, ...]) -> str:
    """The policies and their parameters, the same in every process."""
    return "; ".join(f"{p.func.__name__} {sorted(p.keywords.items())}" for p in policies if isinstance(p, partial))


def summarizing(policies: tuple[Policy, ...]) -> str:
    """What of the policies a summary depends on; empty where none is wanted."""
    return described(tuple(p for p in policies if isinstance(p, partial) and p.func is summarize))
