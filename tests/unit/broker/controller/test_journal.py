"""The causes of the controller's decisions, as an operator reads them."""

import pytest

from barnabas.broker.controller.events import AlterPartition, BrokerRefuses, ControlledShutdown, Event, TopicModified
from barnabas.broker.controller.journal import why


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (BrokerRefuses(7, 40), "the port of broker 7 refuses connections"),
        (ControlledShutdown(7, 40), "broker 7 asked for a controlled shutdown"),
        (AlterPartition(7, 40, {}), "broker 7, which leads, proposed it (AlterPartition)"),
        (TopicModified("orders"), "/brokers/topics/orders changed"),
        (None, "NoneType"),
    ],
)
def test_cause_names_the_broker_or_topic_of_the_event(event: Event | None, cause: str) -> None:
    assert why(event) == cause
