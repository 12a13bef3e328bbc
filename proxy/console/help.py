"""What the command line says about itself: the help of each command, and one line about words that fit none.

Laws
  No name of a type is shown, and nothing here depends on how the library words its messages.
  Where nothing is wrong, nothing is loaded that commands need.

The classes of typer's contexts, formatters and parameters are private, so they are `Any` here.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from typer import TyperException
from typer.core import TyperCommand, TyperGroup

BEGINNING: Mapping[str, str] = {
    "narrows demo": "Show what it does, without key or network.",
    "narrows run -- COMMAND": "Try it with one program of yours.",
    "narrows serve --upstream URL": "Keep it running; it says what to paste.",
}
"""What to try first."""


def _rows(command: Any, context: Any, formatter: Any) -> None:
    """Each parameter below the heading of its group: its names with a word for its values, and what it means."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for each in command.get_params(context):
        is_option = each.param_type_name == "option"
        heading = getattr(each, "rich_help_panel", None) or ("Options" if is_option else "Arguments")
        names = ", ".join([*sorted(each.opts, key=len), *each.secondary_opts]) if is_option else _argument(each)
        word = f" {each.metavar or 'VALUE'}" if is_option and not each.is_flag else ""
        if not getattr(each, "hidden", False):
            sections.setdefault(heading, []).append((f"{names}{word}", _meaning(each)))
    for heading, rows in sections.items():
        with formatter.section(heading):
            formatter.write_dl(rows)


def _argument(each: Any) -> str:
    return str(each.metavar or each.name.upper())


def _meaning(each: Any) -> str:
    """What a parameter means, with its bounds and its default."""
    low, high = getattr(each, "min", None), getattr(each, "max", None)
    bounds = "" if low is None else f"{low:,} or more" if high is None else f"{low:,} to {high:,}"
    default = each.show_default if isinstance(each.show_default, str) else ""
    if each.show_default is True and each.default not in (None, "", False):
        default = f"{each.default:g}" if isinstance(each.default, float) else str(each.default)
    notes = "; ".join(filter(None, (bounds, default and f"default: {default}")))
    return f"{each.help or ''}{f'  [{notes}]' if notes else ''}"


class Command(TyperCommand):
    """One command."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The parameters in their groups."""
        _rows(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words. Raises ConfigurationError where some are left over."""
        ctx.allow_extra_args = True
        left = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            from proxy.config.errors import ConfigurationError

            raise ConfigurationError(f"unexpected argument: {shlex.join(left)}; see `{ctx.command_path} --help`")
        return left

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What may stand behind the command."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(_argument(each) if each.required else f"[{_argument(each)}]" for each in arguments)]


class Commands(TyperGroup):
    """All commands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands, and the few options beside them."""
        self.format_commands(ctx, formatter)
        _rows(self, ctx, formatter)
        with formatter.section("To begin"):
            formatter.write_dl(list(BEGINNING.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names. Raises ConfigurationError."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            from proxy.config.errors import ConfigurationError, meant

            text = f"there is no command {args[0]!r}{meant(args[0], list(self.commands))}"
            raise ConfigurationError(f"{text}; `narrows --help` lists them")
        return super().resolve_command(ctx, args)


def complaint(error: TyperException, words: Sequence[str]) -> str:
    """One line about words that fit no option, with what to do."""
    from pydantic import ValidationError

    from proxy.config.errors import meant, plain

    context, option, parameter = (getattr(error, name, None) for name in ("ctx", "option_name", "param"))
    path = context.command_path if context else "narrows" if words[0].startswith("-") else f"narrows {words[0]}"
    hint = f"; see `{path} --help`"
    if option and hasattr(error, "possibilities"):
        parameters = context.command.get_params(context) if context else []
        names = [flag.lstrip("-") for each in parameters for flag in (*each.opts, *each.secondary_opts)]
        return f"there is no option {option}{meant(option.lstrip('-'), names, '--')}{hint}"
    if option:
        return f"{option} {'needs a value' if option == words[-1] else 'takes no value'}{hint}"
    if parameter is None:
        return f"{error.format_message().rstrip('.')}{hint}"
    name = parameter.opts[0] if parameter.param_type_name == "option" else _argument(parameter)
    if hasattr(error, "param_type"):
        return f"{name} is missing{hint}"
    fault = error.__cause__
    text = plain(fault.errors()[0]) if isinstance(fault, ValidationError) else error.message
    return f"{name}: {text.rstrip('.')}{hint}"
