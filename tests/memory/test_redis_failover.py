"""F for Redis failing over: a replica is promoted, by hand, by Sentinels or by its cluster, and requests are served."""

from collections.abc import Sequence

import pytest

from tests.kit.redis_servers import Park, Server, cluster_url, free_ports, soon
from tests.memory.test_redis_faults import (
    Begin,
    Break,
    Case,
    beginning,  # noqa: F401 - a fixture
    frozen,
    killed,
    stores_counted,  # noqa: F401 - likewise
    stores_tried_soon,  # noqa: F401 - likewise
    told,  # noqa: F401 - likewise
)
from tests.memory.test_store_faults import SESSION, served_as_ever


async def test_f_a_replica_is_trouble_until_it_is_promoted_and_then_knows_all(
    servers: Park, begin: Begin, hurried: None
) -> None:
    primary = servers.server(port=free_ports(1)[0])
    replica = servers.replica(primary)
    first = await begin(primary.url)
    grown = await first.half() + await first.half(second=True)
    await first.app.close(1)
    await soon(primary.copied)
    case = await begin(replica.url)
    await case.until("store_trouble")
    primary.kill()
    replica.do("REPLICAOF", "NO", "ONE")
    await case.until("store_recovered")
    again = await case.stage.ask(case.app, SESSION[:-1])
    assert (again.sent, again.prefix) == (grown[-1].sent, grown[-1].prefix)
    assert "read-only replica" in str(case.log.lines)


async def endures(case: Case, primary: Server, others: Sequence[Server], fault: Break) -> None:
    """Served as ever while one of the `others` takes over; all that was written is there afterwards, and each change is
    told once."""
    grown = await case.half()
    await soon(primary.copied)
    with fault(primary):
        await case.until("store_trouble")
        await case.others()
        await soon(lambda: len(kept(others)) == case.strangers + 1)
        grown += await case.half(second=True)
        served_as_ever(grown, case.expected)
        await case.app.close(1)
        again = await case.restarted()
        assert (again.sent, again.prefix) == (grown[-1].sent, grown[-1].prefix)
    events = case.log.events
    assert events == ["store_trouble", "store_recovered"] * (len(events) // 2)


def kept(servers: Sequence[Server]) -> set[bytes]:
    """The conversations that are there."""
    return {name for server in servers if server.role() == "master" for name in server.do("KEYS", "narrows:*:steps")}


@pytest.mark.parametrize("fault", [killed, frozen], ids=["killed", "frozen"])
async def test_f_sentinels_promote_a_replica(servers: Park, begin: Begin, hurried: None, fault: Break) -> None:
    primary = servers.server(port=free_ports(1)[0])
    replica = servers.replica(primary)
    watching = servers.sentinels(primary, replica, "main")
    hosts = ",".join(f"127.0.0.1:{each.port}" for each in watching)
    case = await begin(f"redis+sentinel://{hosts}/main")
    await endures(case, primary, [replica], fault)
    assert replica.role() == "master"


@pytest.mark.parametrize("fault", [killed, frozen], ids=["killed", "frozen"])
async def test_f_a_cluster_loses_a_primary(servers: Park, begin: Begin, hurried: None, fault: Break) -> None:
    nodes = servers.cluster(3, 3)
    slot = nodes[0].do("CLUSTER KEYSLOT", "narrows:v2:tenants")
    lost = next(i for i in range(3) if slot < (i + 1) * 16384 // 3)
    case = await begin(cluster_url(nodes))
    await endures(case, nodes[lost], [node for node in nodes if node is not nodes[lost]], fault)
    assert nodes[lost + 3].role() == "master"
