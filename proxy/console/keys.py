"""`narrows keys`: makes, lists and revokes keys of the gateway.

Law: a key is printed once, when it is made. What is stored, and printed again, is its SHA-256.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from proxy.addons.access.keys import digest_of, new_key
from proxy.config import KeyRow
from proxy.config.errors import plain, unknown
from proxy.config.rules import Mode
from proxy.config.units import seconds
from proxy.console.arguments import AsJson
from proxy.console.check import limits_of, scope_of
from proxy.console.output import console, plain_table, print_json, refusing
from proxy.console.read_store import KeySettings, StoreConfig, StoreUrl, read_store, settings_of, stored_keys

_Answer = tuple[dict[str, Any], list[Any]]
"""As JSON, and as lines and tables."""
_REVOKED = "streams in progress go on; every further request is refused within seconds, at every replica"
_ACTIONS = Annotated[
    Literal["new", "add", "list", "revoke"],
    typer.Argument(metavar="new|add|list|revoke", help="What to do; new is for the file, add for the store."),
]


def keys(
    action: _ACTIONS,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of its holder; not with list.")] = "",
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="The tenant. Default: the name.")] = None,
    upstream: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An upstream for it; can be repeated. Default: all.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="A model for it; can be repeated. Default: all.")
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A preset that it may choose; can be repeated.")
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(metavar="on|off|observe", help="The highest mode of its requests. Default: as set.")
    ] = None,
    rpm: Annotated[int | None, typer.Option(metavar="N", help="Requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(metavar="N", help="Tokens a minute.")] = None,
    concurrency: Annotated[int | None, typer.Option(metavar="N", help="Requests in flight, over all workers.")] = None,
    usd_per_day: Annotated[float | None, typer.Option(metavar="DOLLARS", help="Dollars on a day (UTC).")] = None,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="When it expires: 90d from now, or 2027-01-31 (UTC). Default: never.")
    ] = "",
    store: StoreUrl = "",
    config: StoreConfig = None,
    as_json: AsJson = False,
) -> None:
    """Make, list and revoke keys of the gateway.

    `new` prints a key and its row for the file; `add` puts the row in the store, where every replica finds it within
    seconds, and prints the key. A key is printed only once. `list` shows the rows of both, `revoke` deletes one of the
    store. NARROWS_STORE and NARROWS_CONFIG count here too.
    """
    lists = {"upstreams": upstream, "models": model, "presets": preset}
    limits = {"rpm": rpm, "tpm": tpm, "concurrency": concurrency, "usd_per_day": usd_per_day}
    fields = {"tenant": tenant, **lists, "mode": mode, **limits}
    fields = {field: value for field, value in fields.items() if value is not None}
    with refusing():
        if (action == "list") == bool(name):
            raise ValueError(f"{action} takes no NAME" if name else f"name the key: narrows keys {action} NAME")
        if action in ("list", "revoke") and (expires or fields):
            raise ValueError("options of a key are for new and add; to change one, revoke it and add another")
        if action == "new":
            answer, lines = _new(*_key_and_row(name, fields, expires))
        else:
            settings = settings_of(KeySettings, store, config)
            if action == "list":
                answer, lines = _listed(settings.keys, asyncio.run(read_store(settings, stored_keys)))
            elif action == "revoke":
                answer, lines = _revoke(settings, name)
            else:
                answer, lines = _add(settings, *_key_and_row(name, fields, expires))
    if as_json:
        return print_json(answer)
    for line in lines:
        console().print(line, soft_wrap=isinstance(line, str))
    return None


def _key_and_row(name: str, fields: Mapping[str, Any], expires: str) -> tuple[str, KeyRow]:
    """A key, and its row. Raises ValueError."""
    key = new_key()
    values = {**fields, "expires": _time(expires)} if expires else fields
    try:
        return key, KeyRow(name=name, sha256=digest_of(key), **values)
    except ValidationError as error:
        first = error.errors()[0]
        place = " ".join(map(str, first["loc"])) or "name"
        raise ValueError(f"{place}: {plain(first)}") from error


def _time(text: str) -> datetime:
    """The time that `expires` means. Raises ValueError."""
    with suppress(ValueError, OverflowError):
        if text.strip()[-1:] in "smhd" and (length := seconds(text)):
            return (datetime.now(UTC) + timedelta(seconds=length)).replace(microsecond=0)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"expires: {text!r} is not a time; write 90d, 2027-01-31 or 2027-01-31T12:00:00Z") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _new(key: str, row: KeyRow) -> _Answer:
    once = f"This is the key of {row.name}; it is not printed again. Its row, for the file of --config:"
    return {"key": key, **as_table(row)}, [key, "", once, "", as_toml(row)]


def _add(settings: KeySettings, key: str, row: KeyRow) -> _Answer:
    if any(row.name == other.name for other in settings.keys):
        raise ValueError(
            f"the file has a key {row.name!r}, which takes precedence over one in the store; take another name"
        )
    names = [str(each.get("name")) for each in settings.upstreams]
    names += ["default"] * bool(settings.upstream) + ["anthropic"] * bool(settings.anthropic_upstream)
    for name in row.upstreams:
        if names and name not in names:
            raise ValueError(f"upstream: {unknown('upstream', name, names)}")
    if not asyncio.run(read_store(settings, lambda opened: opened.add_key(row))):
        raise ValueError(f"the store has a key {row.name!r} (or 2,000 keys); revoke it, or take another name")
    once = f"This is the key of {row.name}. It is in the store, and valid within seconds; it is not printed again."
    return {"key": key, **as_table(row)}, [key, once]


def _revoke(settings: KeySettings, name: str) -> _Answer:
    if not asyncio.run(read_store(settings, lambda opened: opened.delete_key(name))):
        where = "delete its row from the file" if any(name == row.name for row in settings.keys) else "see `list`"
        raise ValueError(f"the store has no key {name!r}; {where}")
    return {"revoked": name}, [f"{name} is revoked: {_REVOKED}."]


def _listed(of_file: Sequence[KeyRow], in_store: Sequence[KeyRow]) -> _Answer:
    names = {row.name for row in of_file}
    rows = [("file", row) for row in of_file] + [("store", row) for row in in_store if row.name not in names]
    table = plain_table("name", "in", "tenant", "sha256", "expires", "limits", left=6)
    for place, row in rows:
        expires = "never" if row.expires is None else row.expires.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
        table.add_row(row.name, place, row.tenant or row.name, row.sha256[:12], expires, limits_of(row))
    scopes = [f"{row.name} may use only: {scope}" for _, row in rows if (scope := scope_of(row))]
    none = 'There is no key. Make one with `narrows keys add NAME`, and set `auth` to "keys" in the settings.'
    return {"keys": [{"in": place, **as_table(row)} for place, row in rows]}, [table, *scopes] if rows else [none]


def as_table(row: KeyRow) -> dict[str, Any]:
    """The fields of a row that are not as by default."""
    return row.model_dump(mode="json", exclude_defaults=True)


def as_toml(row: KeyRow) -> str:
    """As it stands in the file: TOML writes texts and lists of texts as JSON does."""
    fields = row.model_dump(exclude_defaults=True).items()
    lines = (f"{name} = {v.isoformat() if isinstance(v, datetime) else json.dumps(v)}" for name, v in fields)
    return "\n".join(["[[keys]]", *lines])
