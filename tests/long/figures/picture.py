"""A picture of points: the bill to the right, what was needed and out of sight upwards, by kind and price.

Law: it needs nothing from elsewhere, and can be read on light and on dark ground, 700 pixels wide.
"""

from collections.abc import Mapping, Sequence
from html import escape

Points = Mapping[str, tuple[float, float]]
"""By name: the bill, and a share; 1 is all of either."""
WIDTH, HEIGHT = 350, 200
"""Of a panel."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 62, 28, 28
_MOVES = (4, -6, 14, -16, 24, -26, 34)
"""Where a label may stand, below or above its point."""
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#222}.h{font-weight:600}.m{font-weight:700;fill:#b3261e}"
    "path{fill:none;stroke:#888}circle{fill:#1f5fae}.d{fill:#b3261e}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.m{fill:#ff8a80}circle{fill:#7fb2f0}.d{fill:#ff8a80}}"
)


def picture(rows: Sequence[Sequence[tuple[str, Points]]], what: str, marked: str, joined: Sequence[str]) -> str:
    """Rows of panels with shares of what is named. One name is marked, and a line joins the points of some."""
    width, height = WIDTH * max(map(len, rows)), HEIGHT * len(rows)
    panels = [
        f'<g transform="translate({WIDTH * column},{HEIGHT * row})">{_panel(title, what, points, marked, joined)}</g>'
        for row, panels in enumerate(rows)
        for column, (title, points) in enumerate(panels)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *panels, "</svg>", ""])


def _panel(title: str, what: str, points: Points, marked: str, joined: Sequence[str]) -> str:
    bills = [bill for bill, _ in points.values()]
    first, last = int(10 * min(bills)) / 10, -int(-10 * max(bills) - 1) / 10
    highest = max(0.02, 1.1 * max(share for _, share in points.values()))
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def place(bill: float, share: float) -> tuple[float, float]:
        return (
            round(_LEFT + (bill - first) / (last - first) * (right - _LEFT), 1),
            round(bottom - share / highest * (bottom - _TOP), 1),
        )

    parts = [
        f'<text class="h" x="{_LEFT}" y="16">{escape(title)}</text>',
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}"/>',
        f'<text x="{_LEFT - 4}" y="{bottom}" text-anchor="end">0 %</text>',
        f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end">{100 * highest:.0f} %</text>',
        f'<text x="{_LEFT + 4}" y="{_TOP + 8}">of {escape(what)}</text>',
        f'<text x="{_LEFT}" y="{bottom + 14}">{first:.1f}</text>',
        f'<text x="{right}" y="{bottom + 14}" text-anchor="end">bill {last:.1f}</text>',
    ]
    line = " ".join(f"{x},{y}" for name in joined if name in points for x, y in [place(*points[name])])
    parts.append(f'<path stroke-dasharray="3 3" d="M{line}"/>')
    circles = [place(*point) for point in points.values()]
    labels: list[tuple[float, float]] = []
    for name, point in sorted(points.items(), key=lambda each: (each[0] != marked, each[1])):
        x, y = place(*point)
        at = next(
            (at for at in (y + move for move in _MOVES) if at > _TOP + 18 and _is_free(x + 7, at, labels, circles)),
            y + 4,
        )
        labels.append((x + 7, at))
        parts.append(f'<circle cx="{x}" cy="{y}" r="4"{_class(name == marked, "d")}/>')
        parts.append(f'<text x="{x + 7}" y="{at:.1f}"{_class(name == marked, "m")}>{escape(name)}</text>')
    return "".join(parts)


def _class(is_marked: bool, name: str) -> str:
    return f' class="{name}"' if is_marked else ""


def _is_free(x: float, y: float, labels: Sequence[tuple[float, float]], circles: Sequence[tuple[float, float]]) -> bool:
    """Whether a label has room there beside those before, and covers no point."""
    return all(abs(y - other_y) >= 11 or abs(x - other_x) >= 55 for other_x, other_y in labels) and not any(
        x - 4 < circle_x < x + 54 and abs(circle_y - y + 4) < 8 for circle_x, circle_y in circles
    )
