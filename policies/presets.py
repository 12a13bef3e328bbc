"""Named lists of policies with their parameters: what may go, and when each policy wants it.

The order is severity, cheapest first. Figures are measured on recorded sessions; the README says how to repeat them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from policies.context import NO_EXCEPTIONS, Aim, Exceptions, Policy
from policies.model.parameters import Large, Size, Trigger, Window
from policies.rules.abridge import Abridge
from policies.rules.base import ConfiguredPolicy
from policies.rules.clip import Clip
from policies.rules.collapse import Collapse
from policies.rules.dedupe import Dedupe
from policies.rules.digest import Digest
from policies.rules.offload import Offload
from policies.rules.recap import Recap
from policies.rules.reuse import Reuse
from policies.rules.summarize import Summarize
from policies.rules.tidy import Tidy
from policies.rules.trim import Trim
from policies.tools.deferral import ToolLists

StaleAction = Literal["regenerate", "trim", "fail"]


@dataclass(frozen=True, slots=True)
class StaleOptions:
    """When a summary is stale, and what follows; None where something else says it."""

    then: StaleAction | None = None
    ttl: float | None = None
    """Seconds for which a summary counts."""
    same_model: bool | None = None

    def over(self, other: "StaleOptions") -> "StaleOptions":
        same_model = other.same_model if self.same_model is None else self.same_model
        return StaleOptions(self.then or other.then, self.ttl or other.ttl, same_model)


UNSET = StaleOptions()


@dataclass(frozen=True, slots=True)
class WritingOptions:
    """How summaries and digests are written, where a preset says so; the settings say the rest."""

    prompt: str = ""
    """The instructions, in the place of the built-in ones."""
    models: tuple[tuple[str, str], ...] = ()
    """Pairs of a provider ("" for any) and the model that is asked there."""
    tokens: int = 0
    """The length of a summary, at most; 0 for that of the settings."""
    stale: StaleOptions = UNSET

    def model(self, provider: str) -> str:
        """The model that is asked at a provider; empty where the preset names none."""
        models = dict(self.models)
        return models.get(provider, models.get("", ""))


AS_CONFIGURED = WritingOptions()


SMALL_WINDOW = 32_768
"""Tokens of the largest window that counts as small: a chat soon fills it, whatever its summaries cost."""


@dataclass(frozen=True)
class Preset:
    """Policies in the order in which they are called, what they may do beyond the laws, and a line about it."""

    policies: tuple[Policy, ...]
    about: str = ""
    exceptions: Exceptions = NO_EXCEPTIONS
    writing: WritingOptions = AS_CONFIGURED
    aim: Aim = "bill"
    small_chat_aim: Aim | None = None
    """The aim for chats without tools in small windows, where that is another one."""
    sight: float = 0.0
    """The share of actions that may need something out of sight: windows of files and old turns are as wide as that
    takes (policies.sight), and what was written into files stays. 0: windows are as wide as the policies say."""
    tools: ToolLists = "keep"

    def aim_for(self, *, is_chat: bool, window: int) -> Aim:
        return (self.small_chat_aim if is_chat and window <= SMALL_WINDOW else None) or self.aim

    @property
    def configured(self) -> tuple[ConfiguredPolicy, ...]:
        """The policies that have parameters: all but plain functions."""
        return tuple(policy for policy in self.policies if isinstance(policy, ConfiguredPolicy))

    @cached_property
    def summarizes(self) -> bool:
        return any(isinstance(policy, Summarize) for policy in self.policies)

    @cached_property
    def digests(self) -> Large | None:
        """From which size on it wants digests of outputs by a model; None where it does not."""
        return next((each.over for each in self.policies if isinstance(each, Digest) and each.by_model), None)


_DEDUPE = Dedupe(over=60)
_REUSE = Reuse(lines=3, saves=10)
_TIDY = Tidy(saves=20)
_OFFLOAD = Offload(
    over=250,
    keep=10,
    keep_files=8,
    relevant_tokens=30,
    first_sight_over=400,
    first_sight_share=0.25,
    first_sight_least=300,
)
_POINTERS = Offload(over=20_000, keep=5, keep_files=5, relevant_tokens=0, first_cut_share=0.0, first_cut_files=True)
"""Nothing stays of an output but its pointer, from the first cut on."""
_COLLAPSE = Collapse(keep=5)
_CLIP = Clip(over=150, keep=5, keep_writes=30)
_ABRIDGE = Abridge(over=100, keep=5, keep_code=20, keep_share=0.15)
_RECAP = Recap(keep=20, batch=10, keep_share=0.23)
_LAST = Trim(keep=5)
_ROLLING = Summarize(
    keep=4,
    when=(Trigger(tokens=12_000), Trigger(share=0.6)),
    batch=6_000,
    verbatim_tokens=2_000,
    generations=5,
    long_message=8_000,
)
_GROWN = replace(
    _ROLLING,
    when=(Trigger(tokens=100_000), Trigger(share=0.6)),
    when_chat=(Trigger(tokens=16_000), Trigger(share=0.5)),
    batch=2_000,
)
_DIGEST = Digest(over=Size(chars=1_500), max_chars=800, source_chars=50_000, by_model=True)

_SIX = Window(messages=6)
_TENTH = Window(share=0.1)

_SIGHT = 0.03
_EXCERPTS = Exceptions(first_sight=True)

PRESETS: Mapping[str, Preset] = {
    "coding-agent": Preset(
        (_DEDUPE, _REUSE, _TIDY, _COLLAPSE, _CLIP, _OFFLOAD, _ABRIDGE, _RECAP, _LAST),
        "all policies that need no model, cheapest first: of outputs over 400 tokens, except files and documents, the "
        "model first sees what matters in their kind, and what is old goes where that pays",
        _EXCERPTS,
        sight=_SIGHT,
    ),
    "adaptive": Preset(
        (_DEDUPE, _REUSE, _TIDY, _COLLAPSE, _CLIP, _OFFLOAD, _ABRIDGE, _RECAP, _GROWN, _LAST),
        "the default: as coding-agent, with a rolling summary where it pays, once the history has 100,000 tokens or "
        "fills 60 % of the window; in chats without tools, once the prompt has 16,000 tokens or fills half the window, "
        "where it pays or the window is small",
        _EXCERPTS,
        small_chat_aim="context",
        sight=_SIGHT,
    ),
    "gentle": Preset(
        (_DEDUPE, _REUSE, _TIDY, _COLLAPSE, _CLIP, _OFFLOAD, _LAST),
        "as coding-agent, but the prose of the assistant and old turns stay whole",
        _EXCERPTS,
        sight=_SIGHT,
    ),
    "eager": Preset(
        (
            _DEDUPE,
            _REUSE,
            _TIDY,
            _COLLAPSE,
            replace(_CLIP, over=80),
            replace(_OFFLOAD, over=150, keep=5),
            replace(_ABRIDGE, over=60),
            replace(_RECAP, keep=15, keep_share=0.17),
            _LAST,
        ),
        "as coding-agent, with lower thresholds and narrower windows",
        _EXCERPTS,
    ),
    "lossless": Preset(
        (replace(_DEDUPE, outdated=False), _REUSE, _TIDY),
        "nothing is hidden and nothing already sent changes: repeated lines of a new output become references to the "
        "earlier ones, and characters without meaning are removed",
    ),
    "steady": Preset(
        (_DEDUPE, _REUSE, _TIDY, _COLLAPSE, _CLIP, _OFFLOAD, _ABRIDGE, _RECAP, _LAST),
        "as coding-agent, but nothing already sent changes, except near the window and when the cache is cold",
        _EXCERPTS,
        aim="steady",
        sight=_SIGHT,
    ),
    "rolling": Preset(
        (_DEDUPE, _REUSE, _TIDY, _COLLAPSE, _CLIP, _OFFLOAD, _ABRIDGE, _ROLLING, _LAST),
        "as coding-agent, but a model summarizes old turns where that pays (in place of `recap`): this costs model "
        "calls and hides more",
        _EXCERPTS,
    ),
    "chat": Preset(
        (
            _DEDUPE,
            _COLLAPSE,
            _OFFLOAD,
            replace(_ROLLING, when=(Trigger(turns=7),), when_after=(Trigger(turns=6),), batch=600, as_system=True),
            _LAST,
        ),
        "an adaptive window: a summary is requested once there are 7 turns and it can replace 600 tokens; it becomes "
        "system text before the newest 4 turns, and the next one is requested once 6 turns follow it",
        aim="context",
    ),
    "agent-summary": Preset(
        (
            replace(
                _ROLLING,
                keep=_SIX,
                when=(Trigger(tokens=120_000),),
                batch=2_000,
                long_message=120_000,
                as_system=True,
                frame="agent_summary",
            ),
            _LAST,
        ),
        "a summary is requested once the history has 120,000 tokens (earlier where the window is too small for that); "
        "it becomes a system message in <agent_summary> tags, before the newest 6 messages",
        Exceptions(system=("<agent_summary>*</agent_summary>",)),
        WritingOptions(tokens=800),
        aim="context",
    ),
    "structural": Preset(
        (
            _COLLAPSE,
            Clip(over=Size(chars=400), keep=_SIX, keep_writes=_SIX),
            replace(_POINTERS, over=Size(chars=1_500), keep=_SIX, keep_files=_SIX),
            _LAST,
        ),
        "outputs over 1,500 characters become pointers once the model has answered them; arguments over 400 characters "
        "are left out before the newest 6 messages; no model is called",
        aim="context",
    ),
    "tool-digest": Preset(
        (_DIGEST, _COLLAPSE, _DEDUPE, _LAST),
        "outputs over 1,500 characters become digests of 800 characters once the model has answered them; a cheap "
        "model writes the digest, or a rule where no answer is there yet (as for the first outputs of a session)",
        writing=WritingOptions(models=(("openai", "gpt-4.1-mini"), ("anthropic", "claude-haiku-4-5"))),
        aim="context",
    ),
    "harness": Preset(
        (
            _COLLAPSE,
            replace(_DIGEST, over=Size(tokens=2_000, bytes=8_000), max_chars=1_600),
            replace(_ROLLING, keep=2, when=(Trigger(share=0.5), Trigger(messages=80)), batch=600),
            _LAST,
        ),
        "a summary is requested once the history fills half the window (earlier where a price tier begins before "
        "that) or has 80 messages; it stands before the newest 2 turns; outputs over 2,000 tokens or 8,000 bytes "
        "become digests; system messages stay",
        aim="context",
    ),
    "deep": Preset(
        (
            _COLLAPSE,
            Clip(over=Size(chars=2_000), keep=_TENTH, keep_writes=_TENTH, when=(Trigger(share=0.6),)),
            replace(_POINTERS, keep=_TENTH, keep_files=_TENTH),
            replace(_ROLLING, keep=_TENTH, when=(Trigger(share=0.85),), batch=2_000),
            _LAST,
        ),
        "outputs over 20,000 tokens become pointers; from 60 % of the window on, arguments are left out; at 85 % "
        "(340,000 of 400,000 tokens), a summary is requested that replaces all but the newest 10 %; `context_tokens`, "
        "a price tier, or tokens reserved for the answer make this earlier",
        aim="context",
    ),
}

_CONFIGURED = [policy for preset in PRESETS.values() for policy in preset.configured]
POLICIES: Mapping[str, ConfiguredPolicy] = {
    name: next(policy for policy in _CONFIGURED if policy.name == name)
    for name in dict.fromkeys(policy.name for policy in _CONFIGURED)
}
"""Each policy by its name, with its usual parameters: those of the first preset that has it."""


def described(policies: Iterable[Policy]) -> str:
    """The policies and their parameters, the same in every process: fingerprints are made of it."""
    return "; ".join(repr(policy) for policy in policies if isinstance(policy, ConfiguredPolicy))
