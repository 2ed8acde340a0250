"""The settings of the leader's side of share groups, as one immutable value. Those of each group are in `GroupConfig`."""

from dataclasses import dataclass

from barnabas.base.config.derived import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    sessions_max: int = setting("group.share.max.share.sessions")
