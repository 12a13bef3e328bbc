"""What `store` cannot be, each with what to write in its place."""

from pathlib import Path

import pytest

from proxy.app import App
from proxy.config import ConfigurationError, Settings
from proxy.memory import BACK_ENDS, open_store
from tests.kit.settings import settings_with

SECRET = "s3cret"
URL = "give a URL such as sqlite:///FILE or redis://HOST"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis:/x", "it names no server: write redis://HOST:PORT/DB"),
        ("redis://", "it names no server: write redis://HOST:PORT/DB"),
        ("rediss:host", "it names no server: write rediss://HOST:PORT/DB"),
        ("redis+sentinel:a/main", "it names no server: write redis+sentinel://HOST:PORT,HOST:PORT/SERVICE"),
        ("unix:/run/redis.sock", "it names no server: write unix:///PATH/OF/SOCKET"),
        ("sqlite:/x.db", "it names no file: write sqlite:////x.db"),
        ("sqlite://x.db?ttl=30d", "it names no file: write sqlite:///x.db"),
        ("sqlite:", "it names no file: write sqlite:///FILE"),
        ("/var/lib/x.db", "a file is written sqlite:////var/lib/x.db"),
        ("x.db", "a file is written sqlite:///x.db"),
        ("memory", URL),
        (f"postgres://user:{SECRET}@host/db", f"there is no store postgres://; {URL}"),
        ("SQLITE:///x.db", f"this is no store; {URL}"),
        (f"redis:user:{SECRET}@host", "it names no server: write redis://HOST:PORT/DB"),
    ],
)
def test_what_is_no_store_gets_the_one_that_is_meant(url: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        settings_with(["--store", url])
    assert str(error.value) == f"store: {advice} (--store)"
    assert SECRET not in str(error.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        settings_with(["--store", f"sqlite:///{tmp_path}/"])
    assert f"{tmp_path}/ is a folder: name a file in it, sqlite:///{tmp_path}/narrows.db (--store" in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        *("sqlite://", "sqlite:///:memory:", "sqlite:///x.db?ttl=30d", "sqlite:////x.db"),
        *("redis://h/0", "rediss://u:p@h:1", "unix:///run/r.sock", "redis+sentinel://a,b/main", "redis+cluster://a:1"),
    ],
)
def test_what_is_a_store_is_taken_as_it_is(url: str) -> None:
    assert settings_with(["--store", url]).store == url
    assert url.partition(":")[0] in BACK_ENDS
    open_store(url)


async def test_f_a_place_for_no_file_is_served_all_the_same_and_says_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    store = f"sqlite:///{tmp_path}/file/x.db"
    async with await App.start(Settings(upstream="http://127.0.0.1:9/v1", port=0, store=store, log_format="json")):
        log = capfd.readouterr().err
    assert "no file can be made there: give this user the right to write, or name another file" in log
    assert "replies stay right; nothing is stored" in log
    assert "restart to find what is stored" in log
