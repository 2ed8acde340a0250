"""Measures a broker in the process of a test: `python -m bench.broker_in_process`. The first run may have to write bytecode.

The first line includes all imports. Processor time is of use on a busy machine, too.
"""

import time

_BEGAN_S, _CPU_BEGAN_S = time.monotonic(), time.process_time()

import asyncio  # noqa: E402 -- its import counts
import os  # noqa: E402
import statistics  # noqa: E402
from contextlib import AsyncExitStack  # noqa: E402
from pathlib import Path  # noqa: E402

from barnabas.testing import Broker  # noqa: E402

RUNS = 20
AT_ONCE = 10


def memory_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def start_and_stop(brokers: int) -> tuple[float, float, float]:
    """Processor time and time until it is up, and time until it is gone, in milliseconds."""
    began_s, cpu_began_s = time.monotonic(), time.process_time()
    async with Broker(brokers=brokers):
        up_s, cpu_s = time.monotonic(), time.process_time()
    stopped_s = time.monotonic()
    return (cpu_s - cpu_began_s) * 1000, (up_s - began_s) * 1000, (stopped_s - up_s) * 1000


async def main() -> None:
    async with Broker():
        cpu_ms, wall_ms = (time.process_time() - _CPU_BEGAN_S) * 1000, (time.monotonic() - _BEGAN_S) * 1000
        print(
            f"first, with imports: up after {cpu_ms:.0f} ms of processor time, {wall_ms:.0f} ms; {memory_mib():.0f} MiB"
        )
    async with AsyncExitStack() as stack:
        before_mib = memory_mib()
        for _ in range(AT_ONCE):
            kafka = await stack.enter_async_context(Broker())
            await kafka.create_topic("orders")
        print(f"{AT_ONCE} at once: {(memory_mib() - before_mib) / AT_ONCE:.1f} MiB each")
    for brokers in (1, 3):
        runs = [await start_and_stop(brokers) for _ in range(RUNS)]
        cpu_ms, up_ms, down_ms = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"{brokers} brokers: up after {cpu_ms:.0f} ms of processor time, {up_ms:.0f} ms; gone after {down_ms:.0f} ms"
        )


if __name__ == "__main__":
    asyncio.run(main())
