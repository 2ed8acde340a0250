"""`_schemas` through a link: a registry over a mirror reads, refuses to write, and goes on once it is promoted."""

from dataclasses import replace

from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin import links
from barnabas.client.config import client_config
from barnabas.testing import Cluster
from tests.scenarios.registry.conftest import DEADLINE_S, config_for, running


def test_schemas_keep_their_ids_over_a_link_and_new_ones_go_on_from_there(cluster: Cluster) -> None:
    there = config_for(cluster)
    with running(there) as source, Cluster(brokers=1) as here:
        first = source.register("orders-value", '"int"')["id"]
        configs = {"bootstrap.servers": cluster.bootstrap, "link.refresh.interval.ms": "200"}
        here.ask(lambda client: links.create_link(client, "move", configs=configs, topics=there.topic))
        wait_until(lambda: there.topic in here.topics(), DEADLINE_S, what="the mirror is there")
        with running(replace(there, client=client_config(here.bootstrap))) as mirror:
            wait_until(lambda: mirror.get("/subjects") == ["orders-value"], DEADLINE_S, what="the first schema came")
            assert mirror.get(f"/schemas/ids/{first}")["schema"] == '"int"'
            second = source.register("orders-value", '"long"')["id"]
            wait_until(
                lambda: mirror.get("/subjects/orders-value/versions") == [1, 2],
                DEADLINE_S,
                what="the second version came",
            )
            status, _, message = mirror.register("orders-value", '"double"')
            assert status >= 500
            assert "mirror" in message, message
            here.ask(lambda client: links.alter_link(client, "move", "promote"))
            wait_until(
                lambda: isinstance(mirror.register("payments-value", '"double"'), dict), DEADLINE_S, what="writes go on"
            )
            third = mirror.register("payments-value", '"double"')["id"]
            assert first < second < third
            assert mirror.get(f"/schemas/ids/{second}")["schema"] == '"long"'
