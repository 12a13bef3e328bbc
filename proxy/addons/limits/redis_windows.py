"""Requests and tokens of the last minute by the name of a key, in the Redis of the store, counted by the scripts of the
library `limits`; and the dollars of a day, in the store's purses, so that all of it is one round trip.

Law: whoever shares the Redis counts together, each request in one round trip. The window of requests is by its clock,
to a second or so: how far that of who counts is ahead is looked up with each beat.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import nextafter
from secrets import token_hex

from limits.util import get_package_data

from proxy.addons.limits import windows
from proxy.addons.limits.windows import WindowUse, window_tokens
from proxy.config.rules import KeyRow
from proxy.memory import PURSE_SECONDS, Purse, StoreTrouble
from proxy.memory.redis.connection import Command, Keys, RedisConnection, Script, ScriptCommand, address
from proxy.memory.redis.scripts import AHEAD, TAKE
from proxy.memory.serialization import name_bytes

_NO_LIMIT = 2**53
_SEEN = 60
"""Seconds for which a process counts among those that share a limit."""


class SharedWindows:
    """Counts in the Redis of the store, on connections of its own. A key goes by its name."""

    def __init__(self, url: str, patience: float, clock: Callable[[], float] = time.time) -> None:
        where = address(url)
        self._prefix, self._keys = f"{where.prefix}:limits", Keys(where.prefix)
        self._connection = RedisConnection(where, patience)
        self._clock, self._ahead = clock, 0
        self._own_name = token_hex(8)
        self.replicas = 1

    async def open(self) -> None:
        """Connect, or StoreTrouble. From then on it is connected anew where that is needed."""
        await self._connection.open(("EXISTS", self._prefix))

    async def close(self) -> None:
        with suppress(StoreTrouble):
            await self._connection.trip(("ZREM", f"{self._prefix}:seen", self._own_name))
        await self._connection.close()

    async def beat(self) -> None:
        """Be one of those who were seen in the last minute, and count them. Raises StoreTrouble."""
        seen = f"{self._prefix}:seen"
        (self._ahead,) = await self._connection.trip(AHEAD.on([seen], self._clock()))
        now = self._clock() - self._ahead
        *_, replicas = await self._connection.trip(
            ("ZREMRANGEBYSCORE", seen, "-inf", now - _SEEN),
            ("ZADD", seen, now, self._own_name),
            ("EXPIRE", seen, _SEEN),
            ("ZCARD", seen),
        )
        self.replicas = max(1, int(replicas))

    async def admit(self, key: KeyRow, purse: Purse) -> tuple[WindowUse, bool]:
        """As in memory, but one that is refused for its tokens has counted; and true where the purse is used up."""
        now, seconds, commands = self._clock() - self._ahead, windows.MINUTE, list[Command]()
        if key.rpm is not None:
            requests = [self._name(key.name, "requests")]
            commands.append(_ACQUIRE.on(requests, now, key.rpm, seconds, 1))
            commands.append(_REQUESTS.on(requests, now - seconds, key.rpm))
        if key.tpm is not None:
            commands.append(_TOKENS.on(self._counters(key.name), seconds))
        if key.usd_per_day is not None:
            commands.append(self._take(purse, token_hex(16), 0.0, nextafter(key.usd_per_day, 0.0)))
        replies = await self._connection.trip(*commands)
        is_full = key.usd_per_day is not None and not replies.pop()[0]
        row = replies.pop() if key.tpm is not None else (0, 0, 0, 0)
        before, before_ms, current, current_ms = (max(0, int(value or 0)) for value in row)
        tokens = window_tokens(key.tpm, (before, before_ms / 1000, current, current_ms / 1000))
        if key.rpm is None:
            return WindowUse(True, 0, 0.0, *tokens), is_full
        oldest, count = replies[1] or (now, 0)
        wait = max(0.0, float(oldest) + seconds - now)
        return WindowUse(bool(replies[0]), int(count), wait, *tokens), is_full

    async def charge(self, tokens: Mapping[str, int], dollars: Sequence[tuple[Purse, str, float]]) -> None:
        """Add to the tokens of keys, and to what purses hold: once for each mark. Raises StoreTrouble."""
        counters = ((self._counters(name), count) for name, count in tokens.items())
        commands = [_CHARGE.on(keys, _NO_LIMIT, windows.MINUTE, count) for keys, count in counters]
        commands += [self._take(purse, mark, sum_, sys.float_info.max) for purse, mark, sum_ in dollars]
        await self._connection.trip(*commands)

    def _take(self, purse: Purse, mark: str, dollars: float, limit: float) -> ScriptCommand:
        key = self._keys.purse(name_bytes(purse.tenant), name_bytes(purse.day))
        return TAKE.on([key], PURSE_SECONDS, mark, dollars, limit)

    def _name(self, name: str, what: str) -> str:
        return f"{self._prefix}:{{{name}}}:{what}"

    def _counters(self, name: str) -> list[str]:
        return [self._name(name, "tokens_before"), self._name(name, "tokens")]


def _script(name: str) -> Script:
    return Script(get_package_data(f"resources/redis/lua_scripts/{name}.lua").decode())


_ACQUIRE, _REQUESTS = _script("acquire_moving_window"), _script("moving_window")
_CHARGE, _TOKENS = _script("acquire_sliding_window"), _script("sliding_window")
