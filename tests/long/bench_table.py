"""The figures of the benchmark: as JSON, as a table, and as a page with each beside its target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from proxy.console.output import plain_table
from proxy.drawing.charts import stack
from proxy.drawing.html import Node, document, element, table
from tests.long.bench_stage import Cost

LEAD = "Beside a bare relay, measured on one machine at one time. Bars: measured, of three times the target."
LOADS = ("load", "CPU us", "p50 ms", "p99 ms", "a second")
HEADS = ("figure", "measured", "target", "beyond it", "")


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float | None
    unit: str
    target: float | None = None
    beyond: float | None = None
    more_is_better: bool = False
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """What it was worked out from."""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        if self.target is None or self.beyond is None:
            return ""
        for limit, word in ((self.beyond, "beyond"), (self.target, "reached")):
            if self.value >= limit if self.more_is_better else self.value <= limit:
                return word
        return "missed"

    def as_json(self) -> dict[str, Any]:
        costs = {name: cost.as_json() for name, cost in self.costs.items()}
        value = None if self.value is None else round(self.value, 3)
        row = {"figure": self.name, "value": value, "unit": self.unit, "target": self.target, "beyond": self.beyond}
        return {**row, "verdict": self.verdict, **({"costs": costs} if costs else {})}

    def cells(self) -> list[str]:
        return [*(_number(each, self.unit) for each in (self.value, self.target, self.beyond)), self.verdict]


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.2f} {unit}"


def printed(figures: Sequence[Figure]) -> None:
    grid = plain_table(*HEADS)
    for figure in figures:
        grid.add_row(figure.name, *figure.cells())
    Console(stderr=True, width=120, highlight=False, markup=False).print(grid)


def drawn(figures: Sequence[Figure]) -> str:
    rows: list[tuple[Node, list[Node]]] = [(figure.name, [*figure.cells(), _beside(figure)]) for figure in figures]
    costs = [
        (f"{figure.name.partition(':')[0]}, {name}", [f"{value:,}" for value in list(cost.as_json().values())[:4]])
        for figure in figures
        for name, cost in figure.costs.items()
    ]
    return document(
        "Narrows: bench",
        element("h1", "What Narrows adds"),
        element("p", LEAD, class_="lead"),
        table((*HEADS, "of the target"), rows, "sessions"),
        element("section", element("h2", "Measured"), table(LOADS, costs, "sessions")),
    )


def _beside(figure: Figure) -> Node:
    if figure.value is None or not figure.target:
        return ""
    share = min(abs(figure.value) / figure.target, 3)
    return stack([("ink" if figure.verdict != "missed" else "moved", round(100 * share))], 300)
