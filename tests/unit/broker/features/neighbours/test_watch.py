"""Reports between brokers, with answers that the test gives."""

import asyncio
from collections.abc import Callable

from barnabas.base.ids import BrokerId
from barnabas.broker.features.neighbours.watch import HEARD_FOR_MS, HEARD_MAX, ROUND_TRIPS, Watch
from barnabas.client.errors import AuthenticationFailed, ClientError, RequestTimedOut
from tests.manual_time import ManualClock

TWO = BrokerId(2)


class Network:
    """Answers the reports of one broker."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.others = {TWO}
        self.error: ClientError | None = None
        self.took_ms = 10
        self.ahead_ms: int | None = 0
        self.connections = 0
        self.watch = Watch(self.clock, others=lambda: self.others, report=self._report, reconnect=self._reconnect)

    async def _reconnect(self, broker: BrokerId) -> None:
        self.connections += 1

    async def _report(self, broker: BrokerId) -> int | None:
        self.clock.advance_ms(self.took_ms // 2)
        answer = None if self.ahead_ms is None else self.clock.now_ms() + self.ahead_ms
        self.clock.advance_ms(self.took_ms // 2)
        if self.error is not None:
            raise self.error
        return answer

    def rounds(self, number: int = 1, *, after: Callable[[], None] = lambda: None) -> None:
        for _ in range(number):
            asyncio.run(self.watch.round())
            after()


def test_failing_broker_counts_from_the_first_report_that_failed() -> None:
    network = Network()
    network.rounds()
    network.error = RequestTimedOut("no answer within 5 s")
    failed_ms = network.watch.now_ms()
    network.rounds(3)
    seen = network.watch.neighbours[TWO]
    assert (seen.failing_since_ms, seen.reason, seen.is_untrusted) == (failed_ms, "no answer within 5 s", False)


def test_broker_that_answers_again_no_longer_fails_and_was_asked_on_a_new_connection() -> None:
    network = Network()
    network.rounds(2)
    assert network.connections == 1
    network.error = RequestTimedOut("no answer within 5 s")
    network.rounds()
    network.error = None
    network.rounds()
    assert (network.watch.neighbours[TWO].failing_since_ms, network.watch.neighbours[TWO].reason) == (None, "")
    assert network.connections == 2


def test_last_answer_stays_when_reports_fail() -> None:
    network = Network()
    assert network.watch.neighbours == {}
    network.rounds()
    answered_ms = network.watch.now_ms()
    network.error = RequestTimedOut("no answer within 5 s")
    network.rounds(2)
    assert network.watch.neighbours[TWO].answered_at_ms == answered_ms


def test_refused_login_is_not_called_a_cut() -> None:
    network = Network()
    network.error = AuthenticationFailed("wrong password")
    network.rounds()
    assert network.watch.neighbours[TWO].is_untrusted


def test_one_pause_is_not_a_slow_network() -> None:
    network = Network()
    network.took_ms = 4_000
    network.rounds()
    network.took_ms = 20
    network.rounds(ROUND_TRIPS - 1)
    assert network.watch.neighbours[TWO].round_trip_ms == 20


def test_round_trip_is_unknown_before_enough_answers() -> None:
    network = Network()
    network.rounds(ROUND_TRIPS - 1)
    assert network.watch.neighbours[TWO].round_trip_ms is None


def test_clock_is_compared_at_the_middle_of_the_round_trip() -> None:
    network = Network()
    network.ahead_ms, network.took_ms = 3_600_000, 600
    network.rounds()
    assert network.watch.neighbours[TWO].clock_ahead_ms == 3_600_000


def test_clock_is_not_compared_when_the_answer_took_long() -> None:
    network = Network()
    network.ahead_ms, network.took_ms = 3_600_000, 4_000
    network.rounds()
    assert network.watch.neighbours[TWO].clock_ahead_ms == 0


def test_broker_without_this_api_has_no_clock() -> None:
    network = Network()
    network.ahead_ms = None
    network.rounds()
    assert network.watch.neighbours[TWO].clock_ahead_ms == 0
    assert network.watch.neighbours[TWO].failing_since_ms is None


def test_broker_that_left_the_cluster_is_forgotten() -> None:
    network = Network()
    network.error = RequestTimedOut("no answer within 5 s")
    network.rounds()
    network.others = set()
    network.rounds()
    assert network.watch.neighbours == {}


def test_broker_that_reports_from_outside_the_cluster_is_a_stranger_for_half_a_minute() -> None:
    network = Network()
    network.watch.hear(2, "10.0.0.2", None)
    network.watch.hear(3, "10.0.0.3", 7_000)
    assert {broker: heard.zookeeper_away_ms for broker, heard in network.watch.strangers().items()} == {3: 7_000}
    network.clock.advance_ms(HEARD_FOR_MS + 1)
    assert network.watch.strangers() == {}


def test_reports_under_endless_ids_take_bounded_memory() -> None:
    network = Network()
    for broker in range(HEARD_MAX + 50):
        network.watch.hear(broker, "10.0.0.9", None)
    assert len(network.watch.strangers()) == HEARD_MAX - 1  # broker 2 is in the cluster
