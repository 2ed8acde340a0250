"""Election of the primary: the instances form a consumer group and send each other their addresses, as Confluent's do.

The leader of the group picks the primary and sends its choice to all members. The protocol keeps Confluent's older word
"master" for the primary. `PrimaryProtocol` and `choose` follow Confluent's rules, so that instances of both kinds can share a
group.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Never

from barnabas.base.errors import ErrorCode
from barnabas.base.hosts import address
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import ClientError
from barnabas.client.membership import GroupConfig, GroupMember

log = logging.getLogger(__name__)

_VERSION: Final = 1
DUPLICATE_URLS: Final = 1
_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An instance, with the address under which other instances reach it."""

    host: str
    port: int
    scheme: str = "http"
    is_eligible: bool = True
    #: The instance was the primary when it joined.
    is_primary: bool = False

    @property
    def url(self) -> str:
        return f"{self.scheme}://{address(self.host, self.port)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "port": self.port,
            "master_eligibility": self.is_eligible,
            "scheme": self.scheme,
            "version": _VERSION,
            "leader": self.is_primary,
        }


#: Errors that malformed JSON of another member can cause.
_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def identity_of(document: Mapping[str, Any]) -> Identity:
    return Identity(
        host=str(document["host"]),
        port=int(document["port"]),
        scheme=str(document.get("scheme") or "http"),
        is_eligible=bool(document.get("master_eligibility", True)),
        is_primary=bool(document.get("leader", False)),
    )


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment that each member receives: the primary, or an error."""

    member_id: str | None = None
    primary: Identity | None = None
    error: int = 0

    def to_bytes(self) -> bytes:
        document: dict[str, Any] = {"error": self.error}
        if self.primary is not None:
            document |= {"master": self.member_id, "master_identity": self.primary.to_json()}
        return json.dumps(document | {"version": _VERSION}).encode()


def assignment_of(data: bytes) -> Assignment:
    """Parse an assignment. Return one without a primary if it cannot be parsed."""
    try:
        document = json.loads(data)
        primary = document.get("master_identity")
        return Assignment(
            document.get("master"), identity_of(primary) if primary else None, int(document.get("error") or 0)
        )
    except _UNREADABLE:
        log.warning("[registry group] ignored the leader's assignment: is every member a schema registry?")
        return Assignment()


def choose(members: Mapping[str, Identity]) -> Assignment:
    """Return the previous primary if exactly one member claims to be it; else the eligible member with the smallest address."""
    eligible = {member: each for member, each in members.items() if each.is_eligible}
    before = {member: each for member, each in eligible.items() if each.is_primary}
    candidates = before if len(before) == 1 else eligible
    chosen = min(candidates, key=lambda member: candidates[member].url, default=None)
    error = DUPLICATE_URLS if len({each.url for each in members.values()}) < len(members) else 0
    return Assignment(chosen, candidates[chosen] if chosen is not None else None, error)


class PrimaryProtocol:
    type = "sr"
    name = "v0"

    def __init__(self, own: Identity) -> None:
        self.own = own

    def metadata(self) -> bytes:
        return json.dumps(self.own.to_json()).encode()

    async def assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        known: dict[str, Identity] = {}
        for member, data in members.items():
            try:
                known[member] = identity_of(json.loads(data))
            except _UNREADABLE:
                log.warning("[registry group] member %s is not a registry: remove it from the group", member)
        return dict.fromkeys(members, choose(known).to_bytes())


class Election:
    """Membership in the group while `run` runs. `primary` is the known primary; `changed` is called when it changes.

    The primary keeps its role while members join and leave: the log itself keeps a former primary from writing.
    """

    def __init__(self, cluster: AsyncClient, group: GroupConfig, own: Identity, *, changed: Callable[[], None]) -> None:
        self._own = own
        self._protocol = PrimaryProtocol(own)
        self._wake = asyncio.Event()
        self._member = GroupMember(cluster, group, self._protocol, changed=self._wake.set)
        self._changed = changed
        self.primary: Identity | None = None
        self.is_primary = False
        #: Number of assignments so far: a decision under an older one is void.
        self.term = 0

    async def run(self) -> Never:
        while True:
            try:
                self._assigned(assignment_of(await self._member.join()))
            except ClientError as error:
                log.warning("[registry group] cannot join yet, will retry: %s", error)
                self._resign()
                await asyncio.sleep(_RETRY_S)
                continue
            while not self._member.rejoin_needed:
                self._wake.clear()
                await self._wake.wait()

    def _assigned(self, assignment: Assignment) -> None:
        if assignment.error == DUPLICATE_URLS:
            log.error(
                "[registry group] two instances advertise the same address: give each its own --advertised-host and port"
            )
        self.term += 1
        self.is_primary = assignment.member_id is not None and assignment.member_id == self._member.member_id
        self.primary = assignment.primary
        self._protocol.own = Identity(
            host=self._own.host,
            port=self._own.port,
            scheme=self._own.scheme,
            is_eligible=self._own.is_eligible,
            is_primary=self.is_primary,
        )
        log.info(
            "[registry group] the primary is %s%s",
            self.primary.url if self.primary else "not known",
            " (this one)" * self.is_primary,
        )
        self._changed()

    def _resign(self) -> None:
        self.is_primary = False
        self.primary = None
        self._changed()

    def ask_again(self) -> None:
        """Leave the known primary, which was wrong, and rejoin the group for a new assignment."""
        self._resign()
        self._member.rejoin_needed = True
        self._wake.set()

    async def is_confirmed(self) -> bool:
        """Whether the coordinator still knows this member. A member that was removed must not act as primary."""
        return await self._member.beat() in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)

    async def leave(self) -> None:
        await self._member.leave()
