"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

BAR = r"\|"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with these heads; cells may be empty, and may have bars."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |".replace("|  |", "| |") for row in rows]
    return "\n".join(lines)
