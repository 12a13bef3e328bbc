"""Named lists of policies with their parameters: what may go, and when each policy wants it.

The order is severity, cheapest first. Figures come from measurements on recorded sessions; the README says how to
repeat them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from policies.context import NO_EXCEPTIONS, Exceptions, Policy
from policies.model.windows import Large, Size, Trigger, Window
from policies.rules.abridge import abridge
from policies.rules.clip import clip
from policies.rules.collapse import collapse
from policies.rules.dedupe import dedupe
from policies.rules.digest import digest
from policies.rules.offload import offload
from policies.rules.summarize import summarize
from policies.rules.trim import trim


@dataclass(frozen=True, slots=True)
class Writing:
    """How summaries are written, where that is not as the settings say. `models` are pairs of a provider ("" for any)
    and the model that is asked there; `prompt` is in the place of ours; `tokens` is the most that one may have."""

    prompt: str = ""
    models: tuple[tuple[str, str], ...] = ()
    tokens: int = 0

    def model(self, provider: str) -> str:
        """Who is asked at a provider; empty where the preset does not say."""
        named = dict(self.models)
        return named.get(provider, named.get("", ""))


AS_SET = Writing()
"""As the settings say."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Policies in the order in which they are asked, what they may do beyond the laws, and what people are told."""

    policies: tuple[Policy, ...]
    about: str = ""
    exceptions: Exceptions = NO_EXCEPTIONS
    writing: Writing = AS_SET

    @property
    def summarizes(self) -> bool:
        """Whether it wants summaries of turns."""
        return bool(summarizing(self.policies))

    @property
    def digests(self) -> Large | None:
        """From which size on it wants digests of outputs by a model; None where it does not."""
        wanted = (p.keywords for p in self.policies if isinstance(p, partial) and p.func is digest)
        return next((given["over"] for given in wanted if given["by_model"]), None)


_DEDUPE: Policy = partial(dedupe, over=60)
_OFFLOAD: Policy = partial(offload, over=250, keep=5, keep_files=8, matters=30, done=4)
_COLLAPSE: Policy = partial(collapse, keep=5)
_CLIP: Policy = partial(clip, over=150, keep=5, keep_writes=30, done=4)
_ABRIDGE: Policy = partial(abridge, over=100, keep=5, keep_code=20, share=0.15)
_LAST: Policy = partial(trim, keep=5)

_ROLLING = partial(
    summarize,
    keep=6,
    keep_after=4,
    when=(Trigger(tokens=12_000), Trigger(window=0.6)),
    batch=6_000,
    words=2_000,
    generations=5,
    long=8_000,
)

_TENTH = Window(share=0.1)

PRESETS: Mapping[str, Preset] = {
    "coding-agent": Preset(
        (_DEDUPE, _COLLAPSE, _CLIP, _OFFLOAD, _ABRIDGE, _LAST),
        "the default: every layer that needs no model, cheapest first",
    ),
    "gentle": Preset(
        # arguments make up for a little of the prose that stays
        (_DEDUPE, _COLLAPSE, partial(clip, over=150, keep=5, keep_writes=20, done=4), _OFFLOAD, _LAST),
        "as coding-agent, but the model's own prose stays whole",
    ),
    "rolling": Preset(
        (_DEDUPE, _COLLAPSE, _CLIP, _OFFLOAD, _ABRIDGE, _ROLLING, _LAST),
        "as coding-agent, and a model sums up old turns: that costs calls, and takes a little out of sight",
    ),
    "chat": Preset(
        (_DEDUPE, _COLLAPSE, _OFFLOAD, partial(_ROLLING, when=(Trigger(turns=7),), batch=2_000, system=True), _LAST),
        "prose stays whole until a rolling summary stands for it, as system text: 6 turns are kept before the first, "
        "4 from then on",
    ),
    "agent-summary": Preset(
        (
            partial(
                summarize,
                keep=Window(messages=6),
                keep_after=Window(messages=6),
                when=(Trigger(tokens=120_000),),
                batch=2_000,
                words=2_000,
                generations=5,
                long=120_000,
                system=True,
                frame="agent_summary",
            ),
            _LAST,
        ),
        "one summary from 120,000 tokens on, as a system message between <agent_summary> marks, before the newest 6 "
        "messages",
        Exceptions(system=("<agent_summary>*</agent_summary>",)),
        Writing(tokens=800),
    ),
    "structural": Preset(
        (
            _COLLAPSE,
            partial(clip, over=Size(chars=400), keep=Window(messages=6), keep_writes=Window(messages=6)),
            partial(
                offload,
                over=Size(chars=1_500),
                keep=Window(messages=6),
                keep_files=Window(messages=6),
                matters=0,
                fresh=0.0,
                fresh_files=True,
            ),
            _LAST,
        ),
        "outputs over 1,500 characters become pointers once answered, arguments over 400 are left out before the "
        "newest 6 messages; no model is asked",
    ),
    "tool-digest": Preset(
        (
            partial(digest, over=Size(chars=1_500), most=800, source=50_000, by_model=True),
            _COLLAPSE,
            _DEDUPE,
            _LAST,
        ),
        "outputs over 1,500 characters become digests of 800 once answered: a cheap model's, else by rule",
        writing=Writing(models=(("openai", "gpt-4.1-mini"), ("anthropic", "claude-haiku-4-5"))),
    ),
    "harness": Preset(
        (
            _COLLAPSE,
            partial(digest, over=Size(tokens=2_000, bytes=8_000), most=1_600, source=50_000, by_model=True),
            partial(_ROLLING, keep=2, keep_after=2, when=(Trigger(window=0.5), Trigger(messages=80)), batch=4_000),
            _LAST,
        ),
        "a summary from half the window or 80 messages on, digests of outputs over 2,000 tokens or 8,000 bytes; system "
        "messages only where named",
    ),
    "deep": Preset(
        (
            _COLLAPSE,
            partial(clip, over=Size(chars=2_000), keep=_TENTH, keep_writes=_TENTH, when=(Trigger(window=0.6),)),
            partial(offload, over=20_000, keep=_TENTH, keep_files=_TENTH, matters=0, fresh=0.0, fresh_files=True),
            partial(_ROLLING, keep=_TENTH, keep_after=_TENTH, when=(Trigger(window=0.85),), batch=2_000),
            _LAST,
        ),
        "outputs over 20,000 tokens become pointers, arguments are left out from 60 % of the window on, and at 85 % a "
        "summary stands for all but the newest 10 %",
    ),
}


def _by_name(presets: Mapping[str, Preset]) -> dict[str, partial[Any]]:
    found: dict[str, partial[Any]] = {}
    for preset in presets.values():
        for policy in preset.policies:
            if isinstance(policy, partial):
                found.setdefault(policy.func.__name__, policy)
    return found


POLICIES: Mapping[str, partial[Any]] = _by_name(PRESETS)
"""Each policy by its name, with its usual parameters: those of the first preset that has it."""


def described(policies: tuple[Policy, ...]) -> str:
    """The policies and their parameters, the same in every process."""
    return "; ".join(f"{p.func.__name__} {sorted(p.keywords.items())}" for p in policies if isinstance(p, partial))


def summarizing(policies: tuple[Policy, ...]) -> str:
    """What of the policies a summary depends on; empty where none is wanted."""
    return described(tuple(p for p in policies if isinstance(p, partial) and p.func is summarize))


def digesting(policies: tuple[Policy, ...]) -> str:
    """What of the policies a digest depends on; empty where none is wanted."""
    return described(tuple(p for p in policies if isinstance(p, partial) and p.func is digest))
