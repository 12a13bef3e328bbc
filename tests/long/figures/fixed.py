"""Presets that stand beside those of Narrows to measure them: the default one with windows of so many turns, whatever
the model's calls reach back to."""

from collections.abc import Mapping
from dataclasses import replace

from policies.context import Policy
from policies.presets import PRESETS, Preset
from policies.rules.clip import Clip
from policies.rules.offload import Offload
from policies.rules.recap import Recap
from policies.rules.summarize import Summarize
from proxy.config.presets import CustomPreset
from proxy.lab.arguments import PRESET
from proxy.lab.replay.environment import Options

TURNS = (24, 48, 96)


def fixed(preset: Preset, turns: int) -> Preset:
    """The preset with files, written arguments and old turns in sight for so many turns."""
    return replace(preset, sight=0.0, policies=tuple(_with_window(policy, turns) for policy in preset.policies))


def _with_window(policy: Policy, turns: int) -> Policy:
    if isinstance(policy, Offload):
        return replace(policy, keep_files=turns)
    if isinstance(policy, Clip):
        return replace(policy, keep_writes=turns)
    return replace(policy, keep=turns) if isinstance(policy, Recap | Summarize) else policy


FIXED: Mapping[str, Preset] = {f"turns-{turns}": fixed(PRESETS[PRESET], turns) for turns in TURNS}
"""By name; each is otherwise the default preset."""


def options_for(preset: str, prices: str) -> Options:
    """The options of a replay under a preset, one of `FIXED` too."""
    own = {preset: CustomPreset(FIXED[preset], PRESET)} if preset in FIXED else {}
    return Options(prices=(prices,), preset=preset, own=own)
