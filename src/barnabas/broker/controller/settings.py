"""The settings that the controller's decisions depend on, under Kafka's names. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    broker_id: int
    #: `auto.leader.rebalance.enable`
    auto_leader_rebalance_enable: bool = True
    #: `leader.imbalance.check.interval.seconds`
    leader_imbalance_check_interval_seconds: int = 300
    #: `leader.imbalance.per.broker.percentage`
    leader_imbalance_per_broker_percentage: int = 10
    #: `delete.topic.enable`
    delete_topic_enable: bool = True
    #: `unclean.leader.election.enable`; topics override it.
    unclean_leader_election_enable: bool = False
