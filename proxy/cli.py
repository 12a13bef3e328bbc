"""The command `narrows`: one function per command, each of which reads its words and hands over."""

import sys

import typer

from proxy.config import ConfigurationError, load_settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="An OpenAI-compatible reverse proxy that makes long conversations shorter in flight.",
)


@app.callback()
def _narrows() -> None:
    """Keeps `serve` a command of its own while there are few."""


@app.command(
    add_help_option=False,  # the settings print their own
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(context: typer.Context) -> None:
    """Run the proxy. `narrows serve --help` shows every setting with its default."""
    settings = load_settings(context.args)
    from proxy import app as running  # only now: the other commands start faster without it

    running.serve(settings)


def main() -> None:
    """The entry point: a configuration that cannot work ends with a sentence, not with a traceback."""
    try:
        app()
    except ConfigurationError as error:
        for line in str(error).splitlines():
            print(f"narrows: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
