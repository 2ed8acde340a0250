"""SCRAM credentials against which a broker checks clients.

Owner: the event loop. SCRAM credentials are stored in ZooKeeper among the settings of users, as in Kafka; a change reaches
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
        """Replace all settings of a user."""
        for name, mechanism in BY_NAME.items():
            held = self._by_mechanism[mechanism]
            held.pop(user, None)
            text = settings.get(name)
            if text is None:
                continue
            try:
                held[user] = ScramCredential.decode(text)
            except ValueError as error:
                log.error("[user %s] its %s credential cannot be used, set it again: %s", user, name, error)
