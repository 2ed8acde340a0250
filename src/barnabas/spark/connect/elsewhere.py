"""Classes of connectors whose work another part of barnabas does, and what to run instead. Pure."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_MIRROR: Final = "org.apache.kafka.connect.mirror."
_SOURCE: Final = "source.cluster."


@dataclass(frozen=True)
class Elsewhere:
    #: For the documents.
    instead: str
    #: Returns what to run, for a config.
    advice: Callable[[Mapping[str, str]], str]


def _mirror(config: Mapping[str, str]) -> str:
    """Return the properties and the command of the link that does what MirrorSourceConnector does."""
    settings = {
        name.removeprefix(_SOURCE): value
        for name, value in config.items()
        if name.startswith(_SOURCE) and name != f"{_SOURCE}alias"
    }
    lines = ", ".join(
        name if "password" in name or "jaas" in name else f"{name}={value}" for name, value in settings.items()
    )
    name = config.get(f"{_SOURCE}alias", "source")
    topics = "|".join(each.strip() for each in config.get("topics", ".*").split(",") if each.strip())
    command = f"barnabas link create {shlex.quote(name)} --config source.properties --topics {shlex.quote(topics)}"
    return (
        "brokers mirror topics themselves, byte for byte, without Connect and without Spark. Write the source's settings "
        f"({lines or 'bootstrap.servers'}) into source.properties, and run: {command}"
    )


def _no_need(instead: str) -> Callable[[Mapping[str, str]], str]:
    return lambda _: instead


_LINK: Final = (
    "`barnabas link create` ([link](link.md)): brokers mirror topics themselves, with offsets, settings and ACLs"
)
_CHECKPOINTS: Final = "a link copies the offsets of groups: barnabas link create … --groups REGEX"
_HEARTBEATS: Final = "a link shows how far it is: barnabas link describe"

ELSEWHERE: Final[Mapping[str, Elsewhere]] = {
    _MIRROR + "MirrorSourceConnector": Elsewhere(_LINK, _mirror),
    _MIRROR + "MirrorCheckpointConnector": Elsewhere(
        "a link with `--groups` copies the offsets of groups", _no_need(_CHECKPOINTS)
    ),
    _MIRROR + "MirrorHeartbeatConnector": Elsewhere(
        "`barnabas link describe` shows how far a link is", _no_need(_HEARTBEATS)
    ),
}


def advice_for(config: Mapping[str, str]) -> str | None:
    """Return what to run instead of this connector; None if nothing else does its work."""
    given = config.get("connector.class", "")
    for name, elsewhere in ELSEWHERE.items():
        if given in (name, name.rpartition(".")[2], name.rpartition(".")[2].removesuffix("Connector")):
            return elsewhere.advice(config)
    return None
