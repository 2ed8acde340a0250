"""Delayed work: when it runs, and how long it waits at most."""

import asyncio
from collections.abc import Callable

from barnabas.broker.controller.deferral import Deferral


class Brokers:
    def __init__(self) -> None:
        self.have_answered = False
        self.deferral = Deferral(lambda: self.have_answered)
        self.done: list[str] = []

    def put_off(self, name: str) -> None:
        self.deferral.await_quiet(lambda: self.done.append(name))


def on_a_loop(story: Callable[[Brokers], None]) -> None:
    async def run() -> None:
        story(Brokers())

    asyncio.run(run())


def test_delayed_work_waits_until_all_brokers_have_answered() -> None:
    def story(brokers: Brokers) -> None:
        brokers.put_off("ISRs")
        brokers.deferral.look()
        assert brokers.done == []
        brokers.have_answered = True
        brokers.deferral.look()
        assert brokers.done == ["ISRs"]
        brokers.deferral.look()
        assert brokers.done == ["ISRs"]
        brokers.put_off("more")
        assert brokers.done == ["ISRs", "more"], "there is no broker to wait for"

    on_a_loop(story)


def test_hurried_work_does_not_wait_until_rest_is_called() -> None:
    def story(brokers: Brokers) -> None:
        brokers.put_off("first")
        brokers.deferral.hurry()
        brokers.put_off("second")
        assert brokers.done == ["first", "second"]
        brokers.deferral.rest()
        brokers.put_off("third")
        assert brokers.done == ["first", "second"]
        brokers.deferral.drop()

    on_a_loop(story)


async def test_controller_waits_only_once_for_a_broker_that_does_not_answer() -> None:
    brokers, first = Brokers(), asyncio.Event()
    brokers.deferral.await_quiet(first.set)
    async with asyncio.timeout(60):
        await first.wait()
    brokers.put_off("next")
    assert brokers.done == ["next"]


def test_dropped_work_is_not_done() -> None:
    def story(brokers: Brokers) -> None:
        brokers.put_off("of a session that is over")
        brokers.deferral.drop()
        brokers.have_answered = True
        brokers.deferral.look()
        brokers.deferral.hurry()
        assert brokers.done == []

    on_a_loop(story)
