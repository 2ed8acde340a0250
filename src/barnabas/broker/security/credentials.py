"""Passwords and SCRAM credentials that a broker checks clients against.

Owner: the event loop. SCRAM credentials live in ZooKeeper among the settings of users, as Kafka keeps them; a change reaches
every broker by the notification of changed settings.
"""

import logging
from collections.abc import Mapping

from barnabas.wire.auth.mechanisms.scram import BY_NAME, ScramCredential, ScramMechanism

log = logging.getLogger(__name__)


class ScramCredentials:
    def __init__(self) -> None:
        self._by_mechanism: dict[ScramMechanism, dict[str, ScramCredential]] = {each: {} for each in ScramMechanism}

    def get(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self._by_mechanism[mechanism].get(user)

    def user_changed(self, user: str, settings: Mapping[str, str]) -> None:
        """All settings of a user as they are now."""
        for name, mechanism in BY_NAME.items():
            held = self._by_mechanism[mechanism]
            held.pop(user, None)
            text = settings.get(name)
            if text is None:
                continue
            try:
                held[user] = ScramCredential.decode(text)
            except ValueError as error:
                log.error("the %s credential of user %s cannot be used: %s", name, user, error)
