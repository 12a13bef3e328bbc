"""`narrows generate`: its options, and what it does."""

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from proxy.lab.cli_arguments import offers
from proxy.lab.cli_output import refusing

_LOOP, _CHAT, _EDITS = ("requests",), ("turns", "answer", "paste"), ("turns", "files")
_SIZES: Mapping[str, tuple[str, ...]] = {"chat": _CHAT, "claude-loop": _LOOP, "edits": _EDITS, "read-loop": _LOOP}
"""By kind: the sizes that it has."""


def generate(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(_SIZES)}.", autocompletion=offers(*_SIZES))],
    seed: Annotated[int, typer.Option(metavar="N", help="Sizes, repetition and wording follow from it.")] = 1,
    requests: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="How many requests a loop has. Default: 80, or 40 of claude-loop."),
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="N", help="Of chat: questions and answers, 60. Of edits: turns after the reads, 30."
        ),
    ] = None,
    answer: Annotated[
        int | None, typer.Option(min=40, metavar="TOKENS", help="How long a chat's answers are. Default: 780.")
    ] = None,
    paste: Annotated[
        int | None,
        typer.Option(min=40, metavar="TOKENS", help="How long a text each question of a chat brings. Default: none."),
    ] = None,
    files: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="How many files edits read in the first turn. Default: 8.")
    ] = None,
) -> None:
    """Print a session made by rule, for `narrows replay`.

    The same kind, seed and sizes give the same session. The loops are an agent that reads files: read-loop in chat
    completions, claude-loop in Anthropic's Messages, by a client that sets no cache marks. A chat has no tools: a
    person states facts and rules, and asks about them later. In edits an agent with the tools of Claude Code reads some
    files in one turn, and edits them one by one.
    """
    from proxy.lab.generators.chats import ANSWER, KIND, TURNS, chat
    from proxy.lab.generators.edits import editing
    from proxy.lab.generators.loops import generated

    options = {"requests": requests, "turns": turns, "answer": answer, "paste": paste, "files": files}
    sizes = {name: value for name, value in options.items() if value is not None}
    with refusing():
        if kind not in _SIZES:
            raise ValueError(f"there is no generator {kind!r}; name one of {', '.join(_SIZES)}")
        for wrong in sizes.keys() - _SIZES[kind]:
            kinds = " and ".join(each for each in _SIZES if wrong in _SIZES[each])
            raise ValueError(f"{kind} has no --{wrong}, which is for {kinds}")
        if kind == "edits":
            session = editing(seed, **sizes)
        elif kind == KIND:
            session = chat(seed, turns or TURNS, answer or ANSWER, paste or 0)
        else:
            session = generated(kind, seed, requests)
    print(json.dumps(session))
