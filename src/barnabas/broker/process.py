"""A broker as a process: settings from a file, signals, one line when it is ready, and an exit code.

`barnabas up` and the tests start `python -m barnabas.broker.process FILE [k=v]… [--control SOCKET]`, which loads no
command-line library. `--control` opens the socket for fault injection, and is for tests only.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping, Sequence

from barnabas.base import garbage
from barnabas.base.config.properties import load as load_properties
from barnabas.base.errors import BarnabasError, leaves
from barnabas.base.host import kernel
from barnabas.base.host.descriptors import raise_limit
from barnabas.base.host.parent import die_with_parent
from barnabas.base.host.systemd import Notifier
from barnabas.base.log_format import log_to
from barnabas.broker.compose import Broker
from barnabas.broker.runtime.faults import Faults
from barnabas.broker.server.fault_injection import FaultyDisk
from barnabas.broker.server.platform import Platform
from barnabas.wire import codec
from barnabas.wire.versions import api_named

log = logging.getLogger(__name__)

#: The APIs of the first requests of any client.
WARM_APIS = ("ApiVersions", "Metadata", "Produce", "Fetch", "LeaderAndIsr", "UpdateMetadata", "CreateTopics")


def run_broker(properties: Mapping[str, str], *, control_path: str | None = None) -> int:
    """Run a broker as this process, until SIGTERM or SIGINT. Returns the exit code."""
    die_with_parent()
    raise_limit()
    exit_code = 0
    try:
        kernel.run(_run_until_signal(properties, control_path))
    except* BarnabasError as errors:
        for error in leaves(errors):
            log.critical("%s", error)
        exit_code = 1
    return exit_code


def _make_broker(properties: Mapping[str, str], control_path: str | None) -> Broker:
    """`control_path`: through this socket a test asks for faults; without it the broker has no fault points."""
    if control_path is None:
        return Broker(properties)

    faults = Faults()
    platform = Platform(clock=faults.clock, disk=FaultyDisk(faults))
    return Broker(properties, faults=faults, control_path=control_path, platform=platform)


async def _run_until_signal(properties: Mapping[str, str], control_path: str | None) -> None:
    broker = _make_broker(properties, control_path)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(broker.callback_failed)
    systemd = Notifier()

    def stop() -> None:
        systemd.tell(STOPPING="1", STATUS="stopping")
        broker.stop()

    def ready(broker: Broker) -> None:
        _announce(broker)
        systemd.tell(READY="1", STATUS=f"broker {broker.broker_id} of cluster {broker.cluster_id}")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    life = asyncio.create_task(systemd.show_life(), name="systemd watchdog")
    try:
        await broker.run(ready)
    finally:
        life.cancel()


def _announce(broker: Broker) -> None:
    """Print one line when the broker serves clients."""
    garbage.settle()
    where = ",".join(str(endpoint) for endpoint in broker.registrar.registration.endpoints)
    metrics = f" metrics={broker.metrics_server.url}" if broker.metrics_server.port >= 0 else ""
    print(f"ready broker={broker.broker_id} cluster={broker.cluster_id} listeners={where}{metrics}", flush=True)  # noqa: T201
    log.info("[broker %d] of cluster %s serves at %s", broker.broker_id, broker.cluster_id, where)


def warm_up() -> None:
    """Load the message classes of any client's first requests, so that forked brokers share them."""
    for name in WARM_APIS:
        api = api_named(name)
        codec.reader(api.request_class, api.max_version)
        codec.writer(api.response_class, api.max_version)


def main(arguments: Sequence[str]) -> int:
    log_to(sys.stderr, level=logging.INFO)
    rest = list(arguments)
    control_path = None
    if "--control" in rest:
        at = rest.index("--control")
        control_path = rest[at + 1]
        del rest[at : at + 2]
    try:
        properties = load_properties(rest[0], rest[1:])
    except BarnabasError as error:
        log.critical("%s", error)
        return 1
    return run_broker(properties, control_path=control_path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
