"""URLs of stores: what cannot be one, and what is probably meant. What Redis wants of its own is checked there."""

import os
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from proxy.config.errors import refused

REDIS = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_SHAPES: Mapping[str, str] = {
    "unix": "write unix:///PATH/OF/SOCKET",
    **{f"{each}+sentinel": f"write {each}+sentinel://HOST:PORT,HOST:PORT/SERVICE" for each in ("redis", "rediss")},
    **{f"{each}+cluster": f"write {each}+cluster://HOST:PORT,HOST:PORT" for each in ("redis", "rediss")},
    **{each: f"write {each}://HOST:PORT/DB" for each in ("redis", "rediss")},
}
"""What the URL of a Redis looks like."""
_URL = "give a URL such as sqlite:///FILE or redis://HOST"
_FILE = re.compile(r"[^:@?#]*[./][^:@?#]*")
"""A path in the place of a URL: nothing that may hold a password, as whoever reads the error sees it."""


def whole_store_url(value: str) -> str:
    """The URL. Raises what pydantic makes a refusal of; no message repeats what may be a password."""
    scheme, colon, rest = value.partition(":")
    if not colon:
        what = f"a file is written sqlite:///{value}" if _FILE.fullmatch(value) else _URL
        raise refused("store", what)
    if scheme in _SHAPES:
        if not rest.startswith("//") or rest.rstrip("/") == "":
            raise refused("store", f"it names no server: {_SHAPES[scheme]}")
    elif scheme != "sqlite":
        what = f"there is no store {scheme}://" if re.fullmatch("[a-z0-9+]{1,20}", scheme) else "this is no store"
        raise refused("store", f"{what}; {_URL}")
    else:
        _check_file(rest.partition("?")[0])
    return value


def _check_file(place: str) -> None:
    """Refuse what names no file. `place`: what stands between `sqlite:` and a question mark."""
    if place in ("//", "///", "///:memory:"):
        return  # in memory
    path = place[3:] if place.startswith("///") else ""
    if not path or "\0" in path:
        bare = place.removeprefix("//").replace("\0", "")
        raise refused("store", f"it names no file: write sqlite:///{bare if _FILE.fullmatch(bare) else 'FILE'}")
    if os.path.isdir(os.path.expanduser(path)):
        raise refused("store", f"{path} is a folder: name a file in it, sqlite:///{path.rstrip('/')}/narrows.db")


StoreUrl = Annotated[str, AfterValidator(whole_store_url)]
