"""Hosts as network namespaces, with a router in this process that can drop or delay packets, in one direction or both.

Each host has a TUN device whose other end is a file descriptor here, so that nothing is needed of the kernel but namespaces and
TUN: no netem, no bridge, no firewall. This process is a host, too: 10.77.0.254.
"""

import ctypes
import fcntl
import heapq
import os
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_CLONE_NEWNET: Final = 0x40000000
_PACKET_BYTES_MAX: Final = 65_536
#: This process.
HERE: Final = "here"


class Network:
    """`with Network(("b1", "b2")) as network: network.run("b1", command)`; `network.cut("b1", "b2")`."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.addresses: Mapping[str, str] = {
            HERE: "10.77.0.254",
            **{name: f"10.77.0.{number}" for number, name in enumerate(hosts, 11)},
        }
        self._prefix = f"bad{os.getpid()}"
        self._devices: dict[bytes, int] = {}
        self._cuts: set[tuple[bytes, bytes]] = set()
        self._delays_s: dict[tuple[bytes, bytes], float] = {}
        self._is_closing = threading.Event()
        self._router = threading.Thread(target=self._route, name="router", daemon=True)

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
            pytest.skip("needs root and /dev/net/tun")
        try:
            for name, address in self.addresses.items():
                self._add(name, address)
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__(None, None, None)
            pytest.skip(f"cannot make network namespaces: {error}")
        self._router.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closing.set()
        if self._router.is_alive():
            self._router.join(10)
        for device in self._devices.values():
            os.close(device)
        for name in self.addresses:
            if name != HERE:
                subprocess.run(["ip", "netns", "del", self._space(name)], check=False, capture_output=True, timeout=30)

    def command(self, host: str, command: list[str]) -> list[str]:
        """Return the command that runs another one on a host."""
        return command if host == HERE else ["ip", "netns", "exec", self._space(host), *command]

    # -- faults ---------------------------------------------------------------------------------------------------------

    def cut(self, host: str, *others: str, one_way: bool = False) -> None:
        """Drop packets from a host to others, and back unless the cut is one-way."""
        for other in others:
            self._cuts.add((self._raw(host), self._raw(other)))
            if not one_way:
                self._cuts.add((self._raw(other), self._raw(host)))

    def delay(self, host: str, *others: str, seconds: float) -> None:
        """Packets between a host and others take this long in each direction."""
        for other in others:
            for pair in ((self._raw(host), self._raw(other)), (self._raw(other), self._raw(host))):
                self._delays_s[pair] = seconds

    def heal(self) -> None:
        self._cuts.clear()
        self._delays_s.clear()

    # -- devices --------------------------------------------------------------------------------------------------------

    def _space(self, host: str) -> str:
        return f"{self._prefix}{host}"

    def _raw(self, host: str) -> bytes:
        return socket.inet_aton(self.addresses[host])

    def _add(self, host: str, address: str) -> None:
        device = f"t{os.getpid()}"
        if host == HERE:
            self._devices[self._raw(host)] = _open_device(device)
        else:
            _run("ip", "netns", "add", self._space(host))
            self._devices[self._raw(host)] = _open_device(device, space=f"/var/run/netns/{self._space(host)}")
            _run(*self.command(host, ["ip", "link", "set", "lo", "up"]))
        _run(*self.command(host, ["ip", "addr", "add", f"{address}/24", "dev", device]))
        _run(*self.command(host, ["ip", "link", "set", device, "up"]))

    def _route(self) -> None:
        """Carry packets between the devices until the network closes."""
        waiting: list[tuple[float, int, int, bytes]] = []
        number = 0
        with selectors.DefaultSelector() as selector:
            for device in self._devices.values():
                selector.register(device, selectors.EVENT_READ)
            while not self._is_closing.is_set():
                timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
                for key, _ in selector.select(min(timeout_s, 0.2)):
                    packet = os.read(key.fd, _PACKET_BYTES_MAX)
                    pair = (packet[12:16], packet[16:20])
                    to = self._devices.get(pair[1])
                    if packet[0] >> 4 != 4 or to is None or pair in self._cuts:
                        continue
                    number += 1
                    heapq.heappush(waiting, (time.monotonic() + self._delays_s.get(pair, 0.0), number, to, packet))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, to, packet = heapq.heappop(waiting)
                    try:
                        os.write(to, packet)
                    except OSError:
                        continue  # the device is full, or down: a packet is lost


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


def _open_device(name: str, *, space: str | None = None) -> int:
    """Make a TUN device in a namespace. Only the thread that opens it is there for a moment."""
    opened: list[int | OSError] = []

    def open_there() -> None:
        try:
            if space is not None:
                libc = ctypes.CDLL(None, use_errno=True)
                with open(space, "rb") as there:
                    if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), f"setns {space}")
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
            opened.append(device)
        except OSError as error:
            opened.append(error)

    thread = threading.Thread(target=open_there)
    thread.start()
    thread.join()
    [result] = opened
    if isinstance(result, OSError):
        raise result
    return result
