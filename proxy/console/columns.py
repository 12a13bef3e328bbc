"""What the columns of reports mean: all of them for `--help`, and a last line with what one cannot guess."""

from collections.abc import Callable, Mapping
from inspect import cleandoc
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

C = TypeVar("C", bound=Callable[..., Any])
COLUMNS: Mapping[str, str] = {
    "explain": """
        Bars: one for each message by its place in the history, with its tokens, and behind -> those that would be
        sent.

        Columns: policy, what shortens it; where, its place in the body; what, its kind and tool; ref, what --ref
        takes; before and after, tokens; since, now (decided in this request) or earlier (in one before it, as the
        history shows).
    """,
    "replay": """
        Columns, costs, each with Narrows and without (none): req, requests; sent, tokens of all prompts; peak,
        tokens of the largest; input $ and whole $, dollars for prompts, and with replies, recalls and summaries;
        ratio and whole, these bills with Narrows divided by those without, so below 1 it saves; marks alone, the
        bill with cache marks of Narrows and nothing else; with compaction, the input bill divided by that of marks
        alone.

        Columns, faults, which must be 0: invalid, requests that were refused; no reply; undeclared, changes of the
        prefix that the reply did not declare; fail-open, requests sent unchanged because planning failed; lost,
        texts that later turns used, that were not in the prompt and cannot be recalled.

        Columns, bills on the way: sessions, the number of a group; chkp, checkpoints (rewrites of the prefix); end,
        past 20 and any stop, the worst ratio of the input bills at the end of a session, at any request past the
        20th, and at any request; recalls, the share of recall rounds in the input bill.

        Columns, in sight: visible, of the paths, names and numbers that later turns used, the share that stood in
        the prompt; rare, the same for those with at most 3 earlier occurrences; rare at risk, for rare ones that
        last occurred more than 5 turns before; quoted and lines, for the old text that edits quote, by texts and by
        lines; lines at risk, for lines that last occurred more than 5 turns before.

        Columns, out of sight: needs, of the model's next actions, the share that needs a path, name, number or old
        text which the client had sent and which stood nowhere in the prompt; edits, the same for the old text of
        edits. --needs prints each.

        Columns, presets beside each other: * where no other preset is as cheap with as much in sight; calls and $,
        those of a model for recalls and summaries; back, of what was used but not in the prompt, the share that a
        recall or another run of a tool brings back.
    """,
    "presets": """
        Columns: for whom it is. What each costs and leaves in sight stands in policies/README.md; `narrows replay
        --preset NAME` measures it on your sessions.
    """,
    "audit": """
        Columns: when, by this machine's clock; what happened, with its reason and cost. Of summaries: id; what
        became of it; which messages it covers (counted from 0), their tokens and its own; its cost; when and by
        whom it was written.
    """,
    "usage": """
        Columns: requests; original and sent, prompt tokens as the client wrote them, and as billed in their place;
        cached, of the tokens billed, those read from the provider's cache; paid, dollars for all requests;
        baseline, what they would have cost without Narrows; saved, baseline minus paid and summaries; summaries and
        recalls, what these cost (recalls are in paid); chkp, checkpoints (rewrites of the prefix).
    """,
    "agree": """
        Columns: turns, how many were compared; model with itself, how often two replies to the same request agree;
        with Narrows, how often a reply to the shortened request agrees with them; difference, the second minus the
        first, in turns of 100; 95 % interval, which contains the true difference in 19 of 20 cases. Rows: next
        action, tool and target; tools alone; last checkpoint, by the requests since the prefix was rewritten.
    """,
    "load": """
        Columns: count, of requests or events; mean; p50 to p99.9, milliseconds that so many of 100 did not exceed;
        max.
    """,
}
"""By command: every column, in paragraphs for `--help`."""
_LAST_LINES: Mapping[str, str] = {
    "explain": """where: the place in the body; before, after: tokens; since now: decided in this request, earlier:
        in one before it; `narrows explain FILE --ref REF` prints what a ref stands for, --json lists all edits.""",
    "replay": """x/none: with Narrows and without. ratio, end, past 20, any stop: the bill with Narrows divided by
        that without, so below 1 it saves. visible to lines at risk: of what later turns used, the share that stood
        in the prompt. needs, edits: of next actions, and of edits, the share that needs what stood nowhere in it.
        `narrows replay --help` explains every column.""",
    "presets": """What each costs and leaves in sight: policies/README.md. `narrows presets NAME` says what one of
        them does.""",
    "audit": """Messages are counted from 0, as in the request. A cost is that of the model that wrote, at list
        prices. `--text` shows the texts of summaries.""",
    "usage": """original and sent: prompt tokens as the client wrote them, and as billed in their place; cached: of
        the tokens billed, those read from the provider's cache; paid: dollars for all requests, recalls among them;
        baseline: what they would have cost without Narrows; saved: baseline minus paid and summaries; chkp:
        checkpoints, rewrites of the prefix""",
    "agree": """model with itself: how often two replies to the same request agree, which is the model's noise; with
        Narrows: how often a reply to the shortened request agrees with them; difference: the second minus the
        first, in turns of 100; last checkpoint: requests since the prefix was rewritten.""",
    "load": """p50 to p99.9: so many of 100 took no longer; first byte: until a reply began; stop of an event loop:
        how long the process answered nobody; CPU and memory are those of all processes of the target.""",
}
LAST_LINES: Mapping[str, str] = {command: " ".join(text.split()) for command, text in _LAST_LINES.items()}
"""By command: the last line of its report."""


def explains_columns(command: C) -> C:
    """The command, whose help ends with its columns."""
    command.__doc__ = "\n\n".join([cleandoc(command.__doc__ or ""), cleandoc(COLUMNS[command.__name__])])
    return command


def print_last_line(console: Console, command: str) -> None:
    console.print(Text(LAST_LINES[command], style="dim"))
