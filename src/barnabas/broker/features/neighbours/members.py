"""The members of ZooKeeper's ensemble, as this broker reaches them. Owner: the event loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.hosts import address
from barnabas.broker.zookeeper_client.ensemble import MemberAnswer

_log = logging.getLogger(__name__)

#: Pause between two questions to a member, which logs each of them.
ASK_EVERY_S: Final = 10.0

#: Asks one member.
Ask = Callable[[str, int], Awaitable[MemberAnswer]]


@dataclass(slots=True)
class Member:
    #: Start of the first question since which the member does not serve; None if it serves.
    failing_since_ms: int | None = None
    reason: str = ""
    is_up: bool = True
    #: It does not know a transaction that another member knew at the last questions.
    is_behind: bool = False


class Members:
    def __init__(self, clock: Clock, members: Sequence[tuple[str, int]], ask: Ask) -> None:
        self._clock = clock
        self._ask = ask
        self._places = list(members)
        self.members = {address(*place): Member() for place in members}
        #: The newest transaction of any member at the last questions.
        self._newest_zxid = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            await self.round()

    async def round(self) -> None:
        """Ask all members once."""
        started_ms = self.now_ms()
        answers = await asyncio.gather(*(self._ask(*place) for place in self._places))
        for (name, member), answer in zip(self.members.items(), answers, strict=True):
            self._note(name, member, answer, started_ms)
            member.is_behind = answer.zxid is not None and answer.zxid < self._newest_zxid
        self._newest_zxid = max(answer.zxid or 0 for answer in answers)

    def _note(self, name: str, member: Member, answer: MemberAnswer, started_ms: int) -> None:
        if not answer.trouble:
            if member.failing_since_ms is not None:
                _log.info("[zookeeper] %s serves again", name)
            member.failing_since_ms = None
        elif member.failing_since_ms is None:
            member.failing_since_ms = started_ms
            _log.warning(
                "[zookeeper] %s does not serve: %s; start that member, or mend the network to it", name, answer.trouble
            )
        member.reason, member.is_up = answer.trouble, answer.is_up

    def now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)
