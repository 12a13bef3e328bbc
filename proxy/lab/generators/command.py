"""`narrows generate`: which session is made by rule, and how large."""

import json
from typing import Annotated

import typer

from proxy.console.arguments import offers
from proxy.console.output import refusing
from proxy.lab.generators.chats import ANSWER, KIND, TURNS, chat
from proxy.lab.generators.loops import LOOPS, generated


def generate(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="read-loop, claude-loop or chat.",
            autocompletion=offers("read-loop", "claude-loop", "chat"),
        ),
    ],
    seed: Annotated[int, typer.Option(metavar="N", help="Sizes, repetition and wording follow from it.")] = 1,
    requests: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="How many requests a loop has. Default: 80, or 40 of claude-loop."),
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="How many questions and answers a chat has. Default: 60.")
    ] = None,
    answer: Annotated[
        int | None, typer.Option(min=40, metavar="TOKENS", help="How long a chat's answers are. Default: 780.")
    ] = None,
    paste: Annotated[
        int | None,
        typer.Option(min=40, metavar="TOKENS", help="How long a text each question of a chat brings. Default: none."),
    ] = None,
) -> None:
    """Print a session made by rule, for `narrows replay`.

    The same kind, seed and sizes give the same session. The loops are an agent that reads files: read-loop in chat
    completions, claude-loop in Anthropic's Messages, by a client that sets no cache marks. A chat has no tools: a
    person states facts and rules, and asks about them later.
    """
    is_chat = kind == KIND
    with refusing():
        if not is_chat and kind not in LOOPS:
            raise ValueError(f"there is no generator {kind!r}; name one of {', '.join(sorted([KIND, *LOOPS]))}")
        if requests is not None if is_chat else (turns or answer or paste) is not None:
            raise ValueError("--requests is for loops; --turns, --answer and --paste are for chats")
        session = (
            chat(seed, turns or TURNS, answer or ANSWER, paste or 0) if is_chat else generated(kind, seed, requests)
        )
    print(json.dumps(session))
