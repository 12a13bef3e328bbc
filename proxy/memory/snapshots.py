"""The planner's state as bytes: what a snapshot holds, so that whoever takes over a history need not plan it again.

Laws
  What is read plans on as what was written would have; what concerned the newest step alone is left out.
  A snapshot of another release, or of a state with other fields, cannot be read: it is as if there was none.
"""

from importlib.metadata import version
from typing import Any, get_type_hints
from zlib import crc32

import msgspec
import zstandard

from policies.money.ledger import Ledger
from policies.money.prices import Prices
from policies.planning.state import PlanState

_LEVEL = 1
_MOST = 64 * 2**20
"""Bytes of a state that is unpacked."""

OF_NEWEST_STEP = frozenset(["reason", "changed", "use", "dropped", "has_model_text", "wants", "digests", "life"])
"""Fields of PlanState that the next step begins anew."""
OF_STATE = {
    name: kind for name, kind in get_type_hints(PlanState).items() if name not in OF_NEWEST_STEP and name != "ledger"
}
OF_LEDGER: dict[str, Any] = {
    "sent": list[int],
    "saving": dict[int, int],
    "rents": dict[int, float],
    "cached": int,
    "_entries": list[int],
    "_in_reach": int,
    "requests": int,
    "original": int,
    "paid": float,
    "outside": float,
    "_recalled": list[int],
    "apart": int,
    "_by_client": bool,
    "baseline": float,
    "first": int,
    "_baseline_cached": int,
    "write": float,
    "is_cold": bool,
    "is_bridged": bool,
}
"""All attributes of a Ledger but its prices (the fingerprint has them), its sums, and what each request sets."""

_KINDS = (*OF_STATE.values(), *OF_LEDGER.values())
_decoder = msgspec.msgpack.Decoder(tuple[_KINDS])  # type: ignore[valid-type]
_SHAPE = crc32(repr((version("narrows"), list(OF_STATE.items()), list(OF_LEDGER.items()))).encode()).to_bytes(4, "big")
"""Stands before each state."""


def packed(state: PlanState) -> bytes | None:
    """The state as MessagePack; None where a text of it cannot be written so."""
    ledger = vars(state.ledger)
    values = (*(getattr(state, name) for name in OF_STATE), *(ledger[name] for name in OF_LEDGER))
    try:
        return msgspec.msgpack.encode(values)
    except UnicodeEncodeError:
        return None


def compressed(packed: bytes) -> bytes:
    """A packed state as it is stored."""
    return _SHAPE + zstandard.ZstdCompressor(_LEVEL).compress(packed)


def unpacked(stored: bytes, prices: Prices) -> PlanState | None:
    """The state; None where it is of another shape or release, or damaged."""
    if stored[:4] != _SHAPE:
        return None
    try:
        if not 0 <= zstandard.frame_content_size(stored[4:]) <= _MOST:  # so much is allocated, whatever comes
            return None
        values = _decoder.decode(zstandard.ZstdDecompressor().decompress(stored[4:]))
    except (msgspec.MsgspecError, zstandard.ZstdError):
        return None
    ledger = Ledger(prices)
    vars(ledger).update(zip(OF_LEDGER, values[len(OF_STATE) :], strict=True))
    return PlanState(ledger, **dict(zip(OF_STATE, values[: len(OF_STATE)], strict=True)))
