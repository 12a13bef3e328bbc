"""Presets for a terminal: all of them with a line each, or one with everything that it does."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from policies.context import Aim
from proxy.lab.preset_descriptions import PresetDescription
from proxy.lab.reports.columns import print_last_line
from proxy.lab.reports.tables import printable

_AIMS: Mapping[Aim, str] = {
    "bill": "it acts where that pays",
    "context": "it acts at the triggers and sizes below, and costs or saves what that does",
}


def print_presets(console: Console, presets: Sequence[PresetDescription]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("preset", no_wrap=True)
    table.add_column("for whom")
    for preset in presets:
        table.add_row(Text(preset.name, style="bold"), Text(preset.for_whom or _about(preset)))
    console.print(table)
    print_last_line(console, "presets")


def print_preset(console: Console, preset: PresetDescription) -> None:
    """The policies in their order, with their parameters; exceptions to the laws; who writes its summaries."""
    console.print(Text.assemble((preset.name, "bold"), f"  {_about(preset)}"))
    if preset.for_whom:
        console.print(Text(f"for {preset.for_whom}"))
    base_aim = f" (base: {preset.base_aim})" if preset.base_aim else ""
    console.print(Text(f"aim: {preset.aim}{base_aim}"))
    for aim, means in _AIMS.items():
        if aim in preset.aim:
            console.print(Text(f"  {aim}: {means}", style="dim"))
    if preset.sight:
        console.print(Text(f"sight: windows so wide that {preset.sight:.0%} of actions may need something hidden"))
    for exception in preset.exceptions:
        console.print(Text(f"exception to the laws: {printable(exception, 500)}"))
    console.print(Text(printable(preset.writer, 500) if preset.writer else "no model is asked"))
    if preset.left_out_of_base:
        console.print(Text(f"of the base it leaves out {', '.join(preset.left_out_of_base)}"))
    for at, policy in enumerate(preset.policies, 1):
        news = " (the base has none of it)" if policy.not_in_base else ""
        console.print(Text.assemble(f"\n{at}. ", (policy.policy, "bold"), f"  {policy.does}{news}"))
        table = _columns()
        for each in policy.parameters:
            base = f" (base: {each.base})" if each.base else ""
            table.add_row(Text(each.name), Text(f"{each.value}{base}"), Text(each.means, style="dim"))
        console.print(Padding(table, (0, 0, 0, 3)))


def _about(preset: PresetDescription) -> str:
    origin = f"(yours, from {preset.base}) " if preset.base else "(yours) " if preset.own else ""
    return f"{origin}{printable(preset.about, 500)}"


def _columns() -> Table:
    """Columns side by side: that of the names, which are not wrapped, and those that rows add."""
    return Table.grid(Column(no_wrap=True), padding=(0, 2))
