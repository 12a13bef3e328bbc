"""The command `narrows`: `serve`, and the commands of the lab.

Law: `serve` loads nothing of the lab, and nothing that only other commands need.
"""

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from proxy.config import ConfigurationError, load_settings

if TYPE_CHECKING:
    import typer


def serve(words: Sequence[str]) -> None:
    """Run the proxy, with settings as options."""
    settings = load_settings(words)
    from proxy import app

    app.serve(settings)


@cache
def command_line() -> "typer.Typer":
    """All commands."""
    import typer

    from proxy.lab.commands import COMMANDS

    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        help="An OpenAI-compatible reverse proxy that makes long conversations shorter in flight.",
    )

    @app.command(
        "serve",
        help="Run the proxy. `narrows serve --help` shows every setting.",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def _(context: typer.Context) -> None:
        serve(context.args)

    for command in COMMANDS:
        app.command()(command)
    return app


def main(words: Sequence[str] | None = None) -> None:
    """The entry point: a configuration that cannot work ends with a sentence, not with a traceback."""
    words = sys.argv[1:] if words is None else list(words)
    try:
        if words[:1] == ["serve"]:
            serve(words[1:])
        else:
            command_line()(args=words)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            print(f"narrows: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
