"""The page of `narrows serve --help`: every setting with a word for its values, its meaning and its default."""

import re
from argparse import ArgumentParser
from collections.abc import Mapping

_VALUES = {"str": "TEXT", "int": "N", "float": "NUMBER", "ByteSize": "SIZE", "Path": "FILE", "SecretStr": "SECRET"}
"""What stands for the values of a type. Those of any other type are JSON, or a choice in braces."""
_NOTHING = re.compile(r"\(default: (None|\(\)|)\)|\(default factory: dict\)")
_BYTES = re.compile(r"\(default: (\d+)\)$")


def make_readable(parser: ArgumentParser, defaults: Mapping[str, str]) -> None:
    """Put words for people in the place of the names of types, and `defaults` in that of values that are no words."""
    parser.usage = "narrows serve [--SETTING VALUE]..."
    for action in parser._actions:  # argparse has no other way to them
        kind, text = str(action.metavar or ""), action.help or ""
        if kind and not kind.startswith("{"):
            action.metavar = "LIST" if kind == "tuple[str,...]" else _VALUES.get(kind, "JSON")
        if action.dest == "record":
            action.metavar = "FOLDER"
        if kind == "ByteSize":
            text = _BYTES.sub(lambda size: f"(default: {int(size[1]) // 2**20}MiB)", text)
        if action.dest in defaults:
            text = f"{text.partition(' (default')[0]} (default: {defaults[action.dest]})"
        action.help = _NOTHING.sub("(default: none)", text)
