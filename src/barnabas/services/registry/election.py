"""Which instance is the primary: a group whose members tell each other where they are, as Confluent's registries do.

The member that leads the group picks the primary and tells all. The words of the protocol are those of older days: the primary
is the "master". `PrimaryProtocol` and `choose` are Confluent's rules, so that instances of both kinds can share a group.
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
    """An instance, as others reach it."""

    host: str
    port: int
    scheme: str = "http"
    is_eligible: bool = True
    #: It was the primary when it joined.
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


#: What another member of the group may have sent.
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
    """What all members are told."""

    member_id: str | None = None
    primary: Identity | None = None
    error: int = 0

    def to_bytes(self) -> bytes:
        document: dict[str, Any] = {"error": self.error}
        if self.primary is not None:
            document |= {"master": self.member_id, "master_identity": self.primary.to_json()}
        return json.dumps(document | {"version": _VERSION}).encode()


def assignment_of(data: bytes) -> Assignment:
    """Nobody, where it cannot be read."""
    try:
        document = json.loads(data)
        primary = document.get("master_identity")
        return Assignment(
            document.get("master"), identity_of(primary) if primary else None, int(document.get("error") or 0)
        )
    except _UNREADABLE:
        log.warning("the group's leader says nothing that can be read about the primary")
        return Assignment()


def choose(members: Mapping[str, Identity]) -> Assignment:
    """The member that was the primary, if exactly one says so; else the eligible one with the smallest address."""
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
                log.warning("the member %s of the group is no registry: it cannot become the primary", member)
        return dict.fromkeys(members, choose(known).to_bytes())


class Election:
    """Takes part for as long as `run` runs. `primary` is what is known; `changed` is called when that changes.

    The primary stays what it is while members join and leave: the log itself keeps an old primary from writing.
    """

    def __init__(self, cluster: AsyncClient, group: GroupConfig, own: Identity, *, changed: Callable[[], None]) -> None:
        self._own = own
        self._protocol = PrimaryProtocol(own)
        self._wake = asyncio.Event()
        self._member = GroupMember(cluster, group, self._protocol, changed=self._wake.set)
        self._changed = changed
        self.primary: Identity | None = None
        self.is_primary = False
        #: Counts the assignments: what was decided under an older one is void.
        self.term = 0

    async def run(self) -> Never:
        while True:
            try:
                self._told(assignment_of(await self._member.join()))
            except ClientError as error:
                log.warning("the group of registries cannot be joined yet: %s", error)
                self._resign()
                await asyncio.sleep(_RETRY_S)
                continue
            while not self._member.rejoin_needed:
                self._wake.clear()
                await self._wake.wait()

    def _told(self, assignment: Assignment) -> None:
        if assignment.error == DUPLICATE_URLS:
            log.error(
                "two registries say that they are at the same address; give each its own --advertised-host and port"
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
        log.info("primary is %s%s", self.primary.url if self.primary else "nobody", " (this one)" * self.is_primary)
        self._changed()

    def _resign(self) -> None:
        self.is_primary = False
        self.primary = None
        self._changed()

    def ask_again(self) -> None:
        """What this instance knows of the primary was wrong: have the group say it anew."""
        self._resign()
        self._member.rejoin_needed = True
        self._wake.set()

    async def is_confirmed(self) -> bool:
        """Whether the coordinator still counts this member: not a ghost of a group that has gone on."""
        return await self._member.beat() in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)

    async def leave(self) -> None:
        await self._member.leave()
