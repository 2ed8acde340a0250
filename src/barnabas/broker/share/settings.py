"""The settings of the leader's side of share groups, as one immutable value. Those of each group are in `GroupConfig`."""

from dataclasses import dataclass

from barnabas.base.config.derived import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    sessions_max: int = setting("group.share.max.share.sessions")
    creates_dead_letter_topics: bool = setting("errors.deadletterqueue.auto.create.topics.enable")
    #: Names of dead-letter topics begin with it.
    dead_letter_prefix: str = setting("errors.deadletterqueue.topic.name.prefix")
