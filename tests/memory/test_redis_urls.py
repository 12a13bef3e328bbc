"""The URLs of Redis: what they name, what is refused, and that no password is ever said."""

import pytest

from proxy.memory import BACK_ENDS, StoreTrouble, open_store
from proxy.memory.redis.connection import TTL, address
from tests.memory.test_store import (
    Fresh,
    stores_made,  # noqa: F401 - a fixture
)


@pytest.mark.parametrize(
    ("url", "hosts", "service", "db"),
    [
        ("redis://cache", [("cache", 6379)], "", 0),
        ("redis://:p%40ss@cache:7000/3", [("cache", 7000)], "", 3),
        ("rediss://me:secret@[::1]:7000", [("::1", 7000)], "", 0),
        ("redis+sentinel://a,b:27000/main", [("a", 26379), ("b", 27000)], "main", 0),
        ("rediss+sentinel://me:secret@a/main/2", [("a", 26379)], "main", 2),
        ("redis+cluster://a:7000,b:7001", [("a", 7000), ("b", 7001)], "", 0),
    ],
)
def test_a_url_names_servers(url: str, hosts: list[tuple[str, int]], service: str, db: int) -> None:
    found = address(url)
    assert (list(found.hosts), found.service, found.db) == (hosts, service, db)
    assert (found.ttl, found.prefix, found.tls) == (TTL, "narrows", url.startswith("rediss"))
    assert open_store(url)


def test_a_url_names_a_socket_a_login_and_what_is_wanted() -> None:
    found = address("unix://me:p%3Aw@/run/a%20b/redis.sock?db=2&ttl=12h&prefix=team:a&sentinel_password=x&ca=ca.pem")
    assert (found.path, found.db, found.ttl, found.prefix) == ("/run/a b/redis.sock", 2, 12 * 3600, "team:a")
    assert (found.credentials.username, found.credentials.password) == ("me", "p:w")
    assert (found.sentinel.password, found.ca) == ("x", "ca.pem")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://a?ca=/no/such/file.pem", "PEM file"),
        ("redis://", "HOST:PORT"),
        ("redis://a:port", "HOST:PORT"),
        ("redis://a:70000", "HOST:PORT"),
        ("redis://a,b", "redis.cluster"),
        ("redis://a/one", "no database"),
        ("redis://a/1/2", "redis://HOST:PORT/DB"),
        ("redis+sentinel://a,b", "SERVICE"),
        ("redis+cluster://a/1", "no database"),
        ("unix://run/redis.sock", "unix:///run"),
        ("unix://", "unix:///run"),
        ("redis://a?ttl=soon", "30d"),
        ("redis://a?ttl=0", "30d"),
        ("redis://a?prefix={a}", "prefix"),
        ("redis://a?tll=30d", "ttl"),
        ("redis://:p#w@a", "percent-encode"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_what_to_write(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        open_store(url)


@pytest.mark.parametrize("scheme", [scheme for scheme in BACK_ENDS if "redis" in scheme])
async def test_x4_no_password_is_ever_said(scheme: str, free_port: int, fresh: Fresh) -> None:
    service = "/main" if "sentinel" in scheme else ""
    url = f"{scheme}://me:hunter2@127.0.0.1:{free_port}{service}?sentinel_password=hunter2"
    assert "hunter2" not in repr(address(url)) + str(address(url))
    with pytest.raises(StoreTrouble, match=r"127\.0\.0\.1") as raised:
        await fresh(url).open()
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ValueError, match="parameter") as refused:
        open_store(f"{url}&more=1")
    assert "hunter2" not in str(refused.value)
