"""A picture of one session with pauses: its prompt over time, while the cache is alive and while it has expired, and
what is written again; a panel for each way to serve it.

Law: it needs nothing from elsewhere, and can be read on light and on dark ground, 700 pixels wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT, FOOT = 700, 130, 40
_LEFT, _RIGHT, _TOP, _STRIP = 46, 12, 24, 7
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#222}.h{font-weight:600}.p{fill:#1f5fae;opacity:.35}.a{fill:#2e7d32}"
    ".e{fill:#bbb}.w{fill:#b3261e}.k{fill:#222}"
    "@media(prefers-color-scheme:dark){text,.k{fill:#ddd}.p{fill:#7fb2f0}.a{fill:#81c784}.e{fill:#555}.w{fill:#ff8a80}}"
)
_LEGEND = (("p", "prompt"), ("w", "written again"), ("a", "in the cache"), ("e", "expired"), ("k", "ping"))


@dataclass(frozen=True, slots=True)
class Panel:
    """Times are seconds since the session began."""

    title: str
    prompts: Sequence[tuple[float, float]]
    """When each request was sent, and the tokens of its prompt."""
    expired: Sequence[float]
    """The tokens of each that had been in the cache and had expired."""
    pings: Sequence[float] = ()


def timeline(panels: Sequence[Panel], lifetime: float) -> str:
    """The panels, one below the other, by one scale. `lifetime`: seconds that the cache lives without use."""
    height = HEIGHT * len(panels) + FOOT
    end = max(at for panel in panels for at, _ in panel.prompts)
    most = max(tokens for panel in panels for _, tokens in panel.prompts)
    drawn = [
        f'<g transform="translate(0,{HEIGHT * row})">{_panel(panel, end, most, lifetime)}</g>'
        for row, panel in enumerate(panels)
    ]
    ticks = [
        f'<text x="{_across(60 * minute, end)}" y="{HEIGHT * len(panels) + 4}" text-anchor="middle">{minute} min</text>'
        for minute in range(0, int(end // 60) + 1, 20)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *drawn, "".join(ticks), _legend(height - 14), "</svg>", ""])


def _panel(panel: Panel, end: float, most: float, lifetime: float) -> str:
    bottom = HEIGHT - _STRIP - 14

    def up(tokens: float) -> float:
        return round(bottom - tokens / most * (bottom - _TOP), 1)

    steps = "".join(f"H{_across(at, end)}V{up(tokens)}" for at, tokens in panel.prompts)
    parts = [
        f'<text class="h" x="{_LEFT}" y="14">{escape(panel.title)}</text>',
        f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end">{most / 1000:.0f}k</text>',
        f'<path class="p" d="M{_LEFT} {bottom}{steps}V{bottom}Z"/>',
        _bar("e", 0, panel.prompts[-1][0], end, bottom),
    ]
    parts += [_bar("a", begin, over, end, bottom) for begin, over in _alive(panel, lifetime)]
    parts += [_upright("k", at, end, bottom + 1, _STRIP + 4) for at in panel.pings]
    for (at, _), tokens in zip(panel.prompts, panel.expired, strict=True):
        parts += [_upright("w", at, end, up(tokens), round(bottom - up(tokens), 1))] if tokens else []
    return "".join(parts)


def _alive(panel: Panel, lifetime: float) -> list[tuple[float, float]]:
    """From when to when the cache held the prompt."""
    spans, begin = [], 0.0
    for ((at, _), (following, _)), expired in zip(pairwise(panel.prompts), panel.expired[1:], strict=True):
        if expired:
            last_use = max([at, *(ping for ping in panel.pings if ping < following)])
            spans.append((begin, min(following, last_use + lifetime)))
            begin = following
    return [*spans, (begin, panel.prompts[-1][0])]


def _upright(name: str, at: float, end: float, y: float, height: float) -> str:
    width = 4 if name == "w" else 1.5
    x = round(_across(at, end) - width / 2, 1)
    return f'<rect class="{name}" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def _bar(name: str, begin: float, over: float, end: float, y: float) -> str:
    left, right = _across(begin, end), _across(over, end)
    return f'<rect class="{name}" x="{left}" y="{y + 3}" width="{right - left:.1f}" height="{_STRIP}"/>'


def _across(at: float, end: float) -> float:
    return round(_LEFT + at / end * (WIDTH - _LEFT - _RIGHT), 1)


def _legend(y: float) -> str:
    parts, x = [], _LEFT
    for name, words in _LEGEND:
        parts.append(f'<rect class="{name}" x="{x}" y="{y - 9}" width="10" height="10"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{escape(words)}</text>')
        x += 40 + 6 * len(words)
    return "".join(parts)
