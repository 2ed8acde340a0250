"""Every API under every ACL at a live Apache Kafka 3.9.1, and how it stores ACLs and quotas: the contents of
`authorization.json`, `acls.json` and `quotas.json` in `tests/golden/kafka-3.9.1/`.

`python tests/interop/test_authorization.py` records them again.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.authorization import acl_keeping, quota_keeping, table
from tests.authorization.worlds import WORLDS, World
from tests.interop.kinds import APACHE, MixedCluster


class Secured(MixedCluster):
    """A cluster of one broker that authenticates its clients."""

    def _properties(self, broker_id: int) -> dict[str, str]:
        return super()._properties(broker_id) | {"listeners": f"SASL_PLAINTEXT://{self.address(broker_id)}"}


def asked(world: World, kind: str = APACHE) -> dict[str, Any]:
    with Secured(kinds={1: kind}, config=world.config) as cluster:
        return asyncio.run(table.ask_broker(cluster.bootstrap, probes=world.probes, with_singles=world.with_singles))


@pytest.mark.parametrize("name", WORLDS)
def test_apache_kafka_decides_as_recorded(java: None, name: str) -> None:
    golden: Mapping[str, Any] = table.load()
    assert table.differences(golden[name], asked(WORLDS[name])) == []


def keeping(kind: str = APACHE) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how ACLs and quotas are stored."""
    with Secured(kinds={1: kind}, config=table.BROKER_CONFIG) as cluster:
        where = (cluster.bootstrap, cluster.zookeeper)
        return asyncio.run(acl_keeping.kept(*where)), asyncio.run(quota_keeping.kept(*where))


def test_apache_kafka_keeps_acls_and_quotas_as_recorded(java: None) -> None:
    assert keeping() == (acl_keeping.load(), quota_keeping.load())


if __name__ == "__main__":
    acls, quotas = keeping()
    acl_keeping.save(acls)
    quota_keeping.save(quotas)
    table.save({name: asked(world) for name, world in WORLDS.items()})
