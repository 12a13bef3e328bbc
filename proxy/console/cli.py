"""The command `narrows`.

Laws
  A command is loaded without the others. The list of commands is printed, and completed, without loading any.
"""

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": (".options", "Run the proxy."),
    "run": (".run", "Run a command whose requests go through a Narrows of its own."),
    "env": (".env", "Print what to paste into a shell so that a client asks Narrows."),
    "check": (".check", "Check settings without starting, listening or asking anybody."),
    "doctor": (".doctor", "Check what `narrows serve` would do with these settings."),
    "explain": ("..lab.explain", "Show what would become of one saved request."),
    "replay": ("..lab.replay.command", "Run recorded sessions through a real Narrows."),
    "agree": ("..lab.agree.command", "Ask a model whether it does the same with Narrows."),
    "load": ("..lab.load.command", "Hold many conversations at once with a target, and measure."),
    "generate": ("..lab.generators.command", "Print a session made by rule, for `narrows replay`."),
    "demo": ("..lab.demo", "Run two shipped sessions and a long chat through Narrows."),
    "presets": (".presets", "List the presets, or say what one of them does."),
    "export": (".export", "Print a logged conversation as a session, for `narrows replay`."),
    "keys": (".keys", "Make, list and revoke keys of the gateway."),
    "usage": (".usage", "Show what was used, what it cost, and what was saved."),
    "delete": (".delete", "Delete what is stored of a tenant, a key or a conversation."),
    "audit": (".audit", "Show what became of summaries, and what was deleted."),
}
"""All commands: the module that has the function of that name, and the first line of what it says of itself."""


BEGINNING = """\b
To begin:
  narrows demo                  Show what it does, without key or network.
  narrows run -- COMMAND        Try it with one program of yours.
  narrows serve --upstream URL  Keep it running; it says what to paste."""


class Command(TyperCommand):
    """A command whose help has its parameters below the headings of their groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # typer's own click has no types
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            is_argument = each.param_type_name == "argument"
            heading = getattr(each, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
            name, text = each.get_help_record(ctx) or ("", "")
            sections.setdefault(heading, []).append((each.metavar or name if is_argument else name, text))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        import platform
        from importlib.metadata import version

        print(f"narrows {version('narrows')}")
        print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
        from proxy.config import ConfigurationError, load_settings
        from proxy.memory import public_url

        try:
            print(f"store {public_url(load_settings().store)}")
        except ConfigurationError as error:
            print(f"store unknown: {str(error).splitlines()[0]}")
        raise typer.Exit


def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print versions and the store.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def command_line(name: str | None = None) -> typer.Typer:
    """All commands; those not named, or all with "", are there by their first lines only."""
    app = typer.Typer(
        callback=_main,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        help="An OpenAI-compatible reverse proxy that makes long conversations shorter in flight.",
        epilog=BEGINNING,
    )
    for each, (module, line) in COMMANDS.items():
        if name in (None, each):
            app.command(each, cls=Command)(getattr(import_module(module, __package__), each))
        else:
            app.command(each, cls=Command, help=line)(lambda: None)
    return app


def _named(words: Sequence[str]) -> str:
    """The command that the words name, or that they are to be completed for; empty where they name none."""
    if "_NARROWS_COMPLETE" in os.environ:  # a shell asks, and passes the words in its own way
        words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]
    return next((word for word in words if not word.startswith("-")), "")


def main(words: Sequence[str] | None = None) -> None:
    """The entry point: a configuration that cannot work ends with a sentence, not with a traceback."""
    words = sys.argv[1:] if words is None else list(words)
    if words[:1] == ["serve"]:
        gc.disable()  # what is loaded stays: looking for garbage in it only takes time, until the app is up
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started it has closed them; no other file is to take their places
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for good
    try:
        program = typer.main.get_command(command_line(_named(words)))
        sys.exit(program.main(words, prog_name="narrows", standalone_mode=False) or 0)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else f"narrows {_named(words)}".strip()
        message = " ".join(error.format_message().split())  # typer lists choices in lines of their own
        lines = f"{message.rstrip('.')}; see `{command} --help`"
    except typer.Abort:
        sys.exit("narrows: aborted")
    except KeyboardInterrupt:  # while something was loaded
        sys.exit(128 + signal.SIGINT)
    except ValueError as error:
        from proxy.config import ConfigurationError

        if not isinstance(error, ConfigurationError):
            raise
        lines = str(error)
    for line in lines.split("\n"):  # a name of a file or an option may hold control characters
        print("narrows: " + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
