"""S1: a conversation that an earlier release stored goes on byte for byte until its next checkpoint."""

import gzip
import json
from itertools import takewhile
from pathlib import Path

import pytest

from tests.kit.redis_servers import Park
from tests.memory.golden_store import (
    FOR_EVER,
    GOLDEN,
    REDIS,
    SENT,
    SESSIONS,
    SQLITE,
    restored,
    sent,
    unpacked,
    writing_stage,
)

OTHER_ROLES = frozenset({"0.2"})
"""Releases that sent records and summaries in other roles, and had summaries written by other instructions: the first
request after the upgrade is a declared checkpoint, and those behind it extend it. Where that dropped a summary, the one
that is written in its place is adopted at one more."""
RELEASES = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
pytestmark = pytest.mark.usefixtures("patient")


def test_every_release_from_0_2_on_left_a_golden_store() -> None:
    assert [release.name for release in RELEASES][:1] == ["0.2"]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
async def test_s1_what_a_release_stored_goes_on_byte_for_byte_until_its_next_checkpoint(
    release: Path, kind: str, tmp_path: Path, servers: Park
) -> None:
    if kind == "sqlite":
        (tmp_path / "narrows.db").write_bytes(gzip.decompress((release / SQLITE).read_bytes()))
        store = f"sqlite:///{tmp_path}/narrows.db?ttl={FOR_EVER}"
    else:
        server = servers.server()
        restored(server.url, unpacked(release / REDIS))
        store = f"{server.url}?ttl={FOR_EVER}"
    async with writing_stage(tmp_path) as stage:
        for session, expected in zip(
            unpacked(release / SESSIONS), json.loads((release / SENT).read_text()), strict=True
        ):
            until = list(takewhile(lambda row: not row[1].startswith(("checkpoint", "tail-cut")), expected))
            assert len(until) > 3
            rows = await sent(stage, store, session, session["stored"], session["stored"] + len(until))
            if release.name in OTHER_ROLES:
                (first, *others), (_, *expected_others) = ([prefix for _, prefix in each] for each in (rows, until))
                assert first in ("checkpoint:config", "checkpoint:summary-stale")
                if first == "checkpoint:summary-stale" and others != expected_others:  # the new summary is adopted once
                    expected_others[others.index("checkpoint:context")] = "checkpoint:context"
                assert others == expected_others
            else:
                assert rows == until
