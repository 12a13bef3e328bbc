"""A page of the lab: drawn now, by this version."""

import time
from importlib.metadata import version

from proxy.drawing.frame import Imprint, framed
from proxy.drawing.html import Node


def sheet(title: str, heading: Node, covers: str, *inside: Node) -> str:
    """The whole page."""
    return framed(title, heading, Imprint(time.time(), version("narrows"), covers), *inside)
