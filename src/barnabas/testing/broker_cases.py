"""For unittest: test cases with brokers in the process, new ones for each test.

class TestOrders(BrokerTestCase):
    broker_options = {"config": {"num.partitions": 3}}

    def test_order_arrives(self):
        run_my_service(self.kafka.bootstrap)
        self.kafka.assert_records("orders", ["coffee"])
"""

import functools
import inspect
import unittest
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from barnabas.testing.broker import AsyncBroker, BlockingBroker, Broker, add_notes


class _ShowsLogs(unittest.TestCase):
    """A test that fails shows what its brokers logged."""

    kafka: BlockingBroker | AsyncBroker
    #: As for `Broker`.
    broker_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, methodName: str = "runTest") -> None:  # noqa: N803
        super().__init__(methodName)
        test = getattr(self, methodName, None)
        if test is not None:
            setattr(self, methodName, self._noting(test))

    def _noting(self, test: Callable[[], Any]) -> Callable[[], Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_async() -> None:
                try:
                    await test()
                except Exception as error:
                    add_notes(error, self.kafka)
                    raise

            return run_async

        @functools.wraps(test)
        def run() -> None:
            try:
                test()
            except Exception as error:
                add_notes(error, self.kafka)
                raise

        return run


class BrokerTestCase(_ShowsLogs):
    """`self.kafka` is what `with Broker(**broker_options) as kafka` gives: brokers on a thread of their own."""

    kafka: BlockingBroker

    def setUp(self) -> None:
        super().setUp()
        self.kafka = self.enterContext(Broker(**self.broker_options))


class AsyncBrokerTestCase(_ShowsLogs, unittest.IsolatedAsyncioTestCase):
    """`self.kafka` is what `async with Broker(**broker_options) as kafka` gives: brokers on the loop of the test."""

    kafka: AsyncBroker

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.kafka = await self.enterAsyncContext(Broker(**self.broker_options))
