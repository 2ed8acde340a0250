"""The settings that the controller's decisions depend on, under Kafka's names. Pure."""

from dataclasses import dataclass

from barnabas.base.config.derived import setting


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    broker_id: int
    auto_leader_rebalance_enable: bool = setting("auto.leader.rebalance.enable")
    leader_imbalance_check_interval_seconds: int = setting("leader.imbalance.check.interval.seconds")
    leader_imbalance_per_broker_percentage: int = setting("leader.imbalance.per.broker.percentage")
    delete_topic_enable: bool = setting("delete.topic.enable")
    #: Topics override it.
    unclean_leader_election_enable: bool = setting("unclean.leader.election.enable")
