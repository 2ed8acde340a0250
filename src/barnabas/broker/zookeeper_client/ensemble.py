"""The members of the ensemble behind `zookeeper.connect`, each asked by itself: sessions only show that one of them works.

Asks with the four-letter word `srvr`, which ZooKeeper answers unless it was turned off. On a port with TLS, and where the word
is not allowed, only a connection is tried.
"""

import asyncio
import os
from dataclasses import dataclass
from typing import Final

from barnabas.base.hosts import address

#: Bytes of an answer that are read: `srvr` takes some 200.
_ANSWER_BYTES_MAX: Final = 4_096
_NOT_SERVING: Final = "not currently serving"


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """Empty: the member serves, or does not say that it does not."""

    trouble: str = ""
    #: Whether its port answers at all.
    is_up: bool = True
    #: The last transaction that it knows; None if it does not say.
    zxid: int | None = None


def members_of(connect: str) -> list[tuple[str, int]]:
    """Return host and port of each member that `zookeeper.connect` names."""
    hosts: list[tuple[str, int]] = []
    for entry in connect.partition("/")[0].split(","):
        host, colon, port = entry.strip().rpartition(":")
        if colon and port.isdigit():
            hosts.append((host.strip("[]"), int(port)))
        elif entry.strip():
            hosts.append((entry.strip(), 2181))
    return hosts


async def ask_member(host: str, port: int, *, timeout_s: float, has_tls: bool = False) -> MemberAnswer:
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                if has_tls:
                    return MemberAnswer()
                writer.write(b"srvr")
                return _read(await _whole(reader))
            finally:
                writer.close()
    except TimeoutError:
        return MemberAnswer(f"no answer within {timeout_s:.0f} s", is_up=False)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        return MemberAnswer(f"{address(host, port)}: {reason}", is_up=False)


async def _whole(reader: asyncio.StreamReader) -> bytes:
    answer = b""
    while len(answer) < _ANSWER_BYTES_MAX and (more := await reader.read(_ANSWER_BYTES_MAX - len(answer))):
        answer += more
    return answer


def _read(answer: bytes) -> MemberAnswer:
    text = answer.decode(errors="replace")
    if _NOT_SERVING in text:
        return MemberAnswer("it answers, but does not serve: it is not connected to a majority of the members")
    fields = dict(line.partition(": ")[::2] for line in text.splitlines())
    zxid = fields.get("Zxid", "")
    return MemberAnswer(zxid=int(zxid, 16) if zxid[:2] == "0x" and _is_hex(zxid[2:]) else None)


def _is_hex(digits: str) -> bool:
    return 0 < len(digits) <= 16 and all(digit in "0123456789abcdefABCDEF" for digit in digits)
