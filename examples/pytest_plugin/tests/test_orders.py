"""`kafka`: one cluster for the whole run, which starts with the first test that asks; topics and names of each test's own."""

from typing import TYPE_CHECKING

import pytest
from shop.desk import Desk, bill

if TYPE_CHECKING:
    from barnabas.testing import Kafka


def test_order_is_written_down(kafka: "Kafka") -> None:
    desk = Desk(kafka.bootstrap, kafka.topic("orders"))
    assert [desk.take(1, "soup"), desk.take(1, "bread")] == [0, 1]


@pytest.mark.parametrize("run", range(5))
def test_every_test_starts_with_an_empty_topic(kafka: "Kafka", run: int) -> None:
    assert Desk(kafka.bootstrap, kafka.topic("orders")).take(run, "soup") == 0


def test_bill_counts_what_each_table_had(kafka: "Kafka") -> None:
    topic = kafka.topic("orders", partitions=3)
    desk = Desk(kafka.bootstrap, topic)
    for table, dish in [(1, "soup"), (2, "bread"), (1, "soup")]:
        desk.take(table, dish)
    counted = bill(kafka.bootstrap, topic, group=kafka.name("cashier"), orders=3)
    assert counted == {(1, "soup"): 2, (2, "bread"): 1}
