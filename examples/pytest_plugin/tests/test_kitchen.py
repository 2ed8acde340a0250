"""asyncio: the fixture is the same; a test runs its own loop, or takes pytest-asyncio or anyio."""

import asyncio
from typing import TYPE_CHECKING

from shop.desk import Desk, bill
from shop.kitchen import cook

if TYPE_CHECKING:
    from barnabas.testing import Kafka


def test_kitchen_announces_every_order(kafka: "Kafka") -> None:
    orders, ready = kafka.topic("orders"), kafka.topic("ready")
    desk = Desk(kafka.bootstrap, orders)
    for table in range(3):
        desk.take(table, "soup")
    assert asyncio.run(cook(kafka.bootstrap, orders, ready, group=kafka.name("kitchen"), until=3)) == 3
    assert bill(kafka.bootstrap, ready, group=kafka.name("waiter"), orders=3).total() == 3
