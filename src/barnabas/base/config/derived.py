"""Settings in the form that a part of the broker needs, recomputed when the configuration is replaced.

A part declares a frozen dataclass. Each field names the setting that it takes; type, default and meaning have their one home in
`definitions`:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class CleanerSettings:
        backoff_ms: int = setting("log.cleaner.backoff.ms")
"""

from collections.abc import Callable
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import BROKER_SETTINGS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")

_SOURCE: Final = "setting"


class _Source(NamedTuple):
    name: str
    convert: Callable[[Any], Any]


def setting(name: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """Declare a field that has the value of the broker setting `name`, converted. Its default is the setting's default."""
    return field(default=convert(BROKER_SETTINGS[name].default), metadata={_SOURCE: _Source(name, convert)})


def derive(cls: type[S], config: BrokerConfig, **others: object) -> S:
    """Return the settings of a part; `others` are its fields that are not settings."""
    sources = [(each.name, each.metadata[_SOURCE]) for each in fields(cls) if _SOURCE in each.metadata]
    return cls(**others, **{name: source.convert(config.values[source.name]) for name, source in sources})


class Derived(Generic[S]):
    """Call it for the current settings. Configurations are immutable, so each one is converted once."""

    __slots__ = ("_cls", "_config", "_known")

    def __init__(self, config: Callable[[], BrokerConfig], cls: type[S]) -> None:
        self._config = config
        self._cls = cls
        self._known: tuple[BrokerConfig, S] | None = None

    def __call__(self) -> S:
        config = self._config()
        if self._known is None or self._known[0] is not config:
            self._known = (config, derive(self._cls, config))
        return self._known[1]
