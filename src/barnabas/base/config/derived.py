"""Settings in the form that a part of the broker needs, recomputed when the configuration is replaced."""

from collections.abc import Callable
from typing import Generic, TypeVar

from barnabas.base.config.broker import BrokerConfig

S = TypeVar("S")


class Derived(Generic[S]):
    """Call it for the current settings. Configurations are immutable, so each one is converted once."""

    __slots__ = ("_config", "_derive", "_known")

    def __init__(self, config: Callable[[], BrokerConfig], derive: Callable[[BrokerConfig], S]) -> None:
        self._config = config
        self._derive = derive
        self._known: tuple[BrokerConfig, S] | None = None

    def __call__(self) -> S:
        config = self._config()
        if self._known is None or self._known[0] is not config:
            self._known = (config, self._derive(config))
        return self._known[1]
