"""The command `narrows`: `serve`, and the commands of the lab.

Laws
  `serve` loads nothing of the lab, and nothing that only other commands need.
  The list of commands and the version are printed without loading what the commands need.
"""

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

COMMANDS: Mapping[str, str] = {
    "run": "Run a command whose requests go through a Narrows of its own.",
    "env": "Print what to paste into a shell so that a client asks Narrows.",
    "check": "Check settings without starting, listening or asking anybody.",
    "doctor": "Check what `narrows serve` would do with these settings.",
    "explain": "Show what would become of one saved request.",
    "replay": "Run recorded sessions through a real Narrows.",
    "agree": "Ask a model whether it does the same with Narrows.",
    "load": "Hold many conversations at once with a target, and measure.",
    "generate": "Print a session made by rule, for `narrows replay`.",
    "demo": "Run two shipped sessions and a long chat through Narrows.",
    "presets": "List the presets, or say what one of them does.",
    "export": "Print a logged conversation as a session, for `narrows replay`.",
    "keys": "Make, list and revoke keys of the gateway.",
    "usage": "Show what was used, what it cost, and what was saved.",
    "audit": "Show what became of summaries, and what was deleted.",
}
"""The commands of the lab, and the first line of what each says of itself."""


def serve(words: Sequence[str]) -> None:
    """Run the proxy, with settings as options."""
    gc.disable()  # what is loaded stays: looking for garbage in it only takes time, until the app is up
    from proxy.config import load_settings

    read = partial(load_settings, words)
    settings = read()
    from proxy import serving

    serving.serve(settings, read)


def command_line(name: str | None = None) -> "typer.Typer":
    """All commands; where one is named, the others are there by their names and first lines only."""
    import typer

    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        help="An OpenAI-compatible reverse proxy that makes long conversations shorter in flight."
        " `narrows --version` prints the version.",
    )

    @app.command(
        "serve",
        help="Run the proxy. `narrows serve --help` shows every setting.",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def _(context: typer.Context) -> None:
        serve(context.args)

    for each, line in COMMANDS.items():
        app.command(each)(_command(each)) if name in (None, each) else app.command(each, help=line)(lambda: None)
    return app


def _command(name: str) -> Callable[..., None]:
    from proxy.lab import commands

    command: Callable[..., None] = getattr(commands, name)
    return command


def main(words: Sequence[str] | None = None) -> None:
    """The entry point: a configuration that cannot work ends with a sentence, not with a traceback."""
    words = sys.argv[1:] if words is None else list(words)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started it has closed them; no other file is to take their places
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for good
    try:
        if words[:1] == ["serve"]:
            serve(words[1:])
        elif words == ["--version"]:
            from importlib.metadata import version

            print(version("narrows"))
        else:
            command_line(next(iter(words), ""))(args=words)
    except ValueError as error:
        from proxy.config import ConfigurationError

        if not isinstance(error, ConfigurationError):
            raise
        for line in str(error).splitlines():
            print(f"narrows: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
