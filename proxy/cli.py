"""The command `narrows`: `serve`, and the commands of the lab.

Laws
  `serve` loads nothing of the lab, and nothing that only other commands need.
  The list of commands is printed, and completed, without loading what the commands need.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.help import Command, Commands, complaint

if TYPE_CHECKING:
    from proxy.config import Settings

COMMANDS: Mapping[str, str] = {
    "serve": "Run the proxy.",
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
    "delete": "Delete what is stored of a tenant, a key or a conversation.",
    "audit": "Show what became of summaries, and what was deleted.",
}
"""All commands, and the first line of what each says of itself."""
SERVE = """Run the proxy.

Every setting is an option here, a variable (NARROWS_PORT) and a key of the TOML file that --config names (port). They
take precedence in that order. TIME is a duration such as 90s, 25m or 30d, SIZE a size such as 64MiB; commas stand in a
LIST. What is a TABLE is easier to write in the file.
"""


def serve(flags: Mapping[str, Any]) -> None:
    """Run the proxy with these settings, those of the environment and those of the file."""
    from proxy.config import load_settings

    read: Callable[[], Settings] = partial(load_settings, flags)
    settings = read()
    from proxy.serving.serve import serve as run

    run(settings, read)


def _print_version(is_wanted: bool) -> None:
    """Versions, and where the store is."""
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
    """All commands. With the name of one, the others are there by their names and first lines only; so are all with the
    name of none."""
    app = typer.Typer(
        cls=Commands,
        callback=_main,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        help="An OpenAI-compatible reverse proxy that makes long conversations shorter in flight.",
    )
    for each, line in COMMANDS.items():
        if name in (None, each):
            app.command(each, cls=Command, help=SERVE if each == "serve" else None)(_command(each))
        else:
            app.command(each, cls=Command, help=line)(lambda: None)
    return app


def _command(name: str) -> Callable[..., None]:
    if name == "serve":
        from proxy.config.options import taking_settings

        return taking_settings(serve)
    from proxy.lab import commands

    command: Callable[..., None] = getattr(commands, name)
    return command


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
        command = typer.main.get_command(command_line(_named(words)))
        sys.exit(command.main(words, prog_name="narrows", standalone_mode=False) or 0)
    except typer.TyperException as error:
        lines = complaint(error, words)
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
