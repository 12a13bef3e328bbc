"""What a check finds: how it is, and in the same sentence what to do."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `narrows doctor`. Nothing works with a failure; a warning may be meant."""

    status: Status
    about: str
    text: str
