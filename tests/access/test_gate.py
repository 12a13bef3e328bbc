"""Who is let in with which key, what it may ask, and what becomes of the key."""

from typing import Any

import pytest

from proxy.access.keys import digest_of, is_sound, new_key
from proxy.config.keys import KEY_SHAPE
from tests.kit.running import Running, Start

BODY = {"model": "gpt-5.4", "messages": [{"role": "user", "content": "hi"}]}
ALICE, BOB = new_key(), new_key()


def keys(**rows: dict[str, Any]) -> list[dict[str, Any]]:
    of = {"alice": ALICE, "bob": BOB}
    return [{"name": name, "sha256": digest_of(of[name]), **row} for name, row in rows.items()]


async def ask(setup: Running, headers: dict[str, str], body: Any = BODY, path: str = "/chat/completions") -> Any:
    async with setup.client.post(setup.url + path, json=body, headers=headers) as reply:
        return reply.status, dict(reply.headers), await reply.json(content_type=None)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_are_told_from_what_looks_like_one() -> None:
    made = [new_key() for _ in range(200)]
    assert len(set(made)) == 200
    assert all(is_sound(key) and KEY_SHAPE.fullmatch(key) for key in made)
    for at in range(4, len(ALICE)):
        assert not is_sound(ALICE[:at] + ("1" if ALICE[at] != "1" else "2") + ALICE[at + 1 :])
    assert not any(is_sound(other) for other in (ALICE[:-1], ALICE + "1", ALICE.upper(), "", "nrw_"))


@pytest.mark.parametrize("header", ["Authorization", "api-key", "x-api-key", "x-narrows-key"])
async def test_x4_a_key_is_read_where_clients_put_one_and_never_goes_upstream(narrows: Start, header: str) -> None:
    setup = await narrows(auth="keys", keys=keys(alice={}), log_level="debug")
    value = f"Bearer {ALICE}" if header == "Authorization" else ALICE
    assert (await ask(setup, {header: value, "x-copy": f"key={ALICE}", "x-other": "stays"}))[0] == 200
    (received,) = setup.upstream.seen
    assert ALICE not in str(received.headers)
    assert received.one("x-other") == "stays"
    client_request = setup.compaction.seen[0].client_request
    assert client_request.tenant == "alice"
    assert ALICE not in str(client_request)
