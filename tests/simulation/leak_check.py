"""Check that a cluster frees memory after its clients have gone and all is quiet.

The check walks through everything that a broker reaches from its root: there may be no request that waits for a client, no
member of a group, no connection that the peer has closed, and no task or timer beyond the brokers' own work. No open log file
is being read, and each belongs to a segment that the broker knows.
"""

import types
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from barnabas.broker.storage.file_handle import OpenFile
from barnabas.broker.storage.names import LOG_SUFFIX

if TYPE_CHECKING:
    from barnabas.testing.simulation.process import BrokerProcess
    from tests.simulation.cluster import SimCluster

#: Longer than sessions and rebalances of the load's groups take to end.
QUIET_S = 12.0
#: Classes of objects that belong to a client. None may remain.
CLIENTS = ("DelayedProduce", "DelayedDeleteRecords", "ClassicMember", "ConsumerMember")
#: Classes of objects that a broker needs for each other broker: waiting fetches, requests and their responses.
LINKS = ("_LongPoll", "Call", "_Pending")
#: Objects of the simulator refer to all processes of the world.
_SIMULATOR = "barnabas.testing.simulation."
#: Files that are deleted after `file.delete.delay.ms`.
_DELETIONS = ("_delete_later", "_remove_tree_later")

#: Where empty entries remain for a while.
_MAY_BE_EMPTY = ("Deadlines._slots", "Deadlines._order")


def left(cluster: "SimCluster") -> list[str]:
    """Describe the objects that should not remain."""
    brokers = len(cluster.brokers)
    return [
        f"{process.name} has {count} of {what}, {most} at most are due"
        for process in cluster.brokers.values()
        for what, count, most in _found(process, brokers)
        if count > most
    ]


def _found(process: "BrokerProcess", brokers: int) -> Iterator[tuple[str, int, int]]:
    loop = process.loop
    assert loop is not None
    kinds, largest, files = walk(process.broker)
    for name in CLIENTS:
        yield name, kinds[name], 0
    for name in LINKS:
        yield name, kinds[name], 4 * brokers
    ended = [sock for sock in loop.sockets.values() if sock.line is not None and sock.line.other.is_closed]
    yield "connections that the other side has closed", len(ended), 0
    tasks = [task for task in loop.tasks if not task.done()]
    yield f"tasks ({Counter(task.get_name() for task in tasks)})", len(tasks), 12 + 5 * brokers
    timers = Counter(name for name in loop.timers() if not any(each in name for each in _DELETIONS))
    yield f"timers ({timers})", timers.total(), 20 + 6 * brokers
    place, size = largest
    yield f"entries of {place}", size, 400
    pinned = [each.path for each in files if each.pins]
    yield f"files that are being read ({pinned})", len(pinned), 0
    known = {each.fd for each in files}
    lost = [path for fd, path in process.open_files.items() if path.endswith(LOG_SUFFIX) and fd not in known]
    yield f"files that belong to no segment ({lost})", len(lost), 0


def walk(root: object) -> tuple[Counter[str], tuple[str, int], list[OpenFile]]:
    """Return the reachable objects by class of ours, the largest container (where it is, its size), and the open files."""
    files: list[OpenFile] = []
    kinds: Counter[str] = Counter()
    largest = ("", 0)
    seen: set[int] = set()
    left: list[tuple[object, str]] = [(root, "")]
    while left:
        each, place = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kind = type(each)
        if isinstance(each, dict | list | set | frozenset | deque | tuple):
            size = _filled(each) if place in _MAY_BE_EMPTY else len(each)
            if size > largest[1]:
                largest = (place, size)
            left += [(item, f"{place}[]") for item in (_both(each) if isinstance(each, dict) else each)]
        elif isinstance(each, types.MethodType):
            left.append((each.__self__, place))
        elif isinstance(each, types.FunctionType):
            left += [(value, place) for value in _captured(each)]
        elif kind.__module__.startswith("barnabas.") and not (
            isinstance(each, type) or kind.__module__.startswith(_SIMULATOR)
        ):
            kinds[kind.__name__] += 1
            if isinstance(each, OpenFile):
                files.append(each)
            left += [(value, f"{kind.__name__}.{name}") for name, value in _fields(each).items()]
    return kinds, largest, files


def _filled(container: Collection[Any]) -> int:
    """Count the entries that hold anything: the slot of a deadline that was removed stays, empty, until its time."""
    return sum(bool(each) for each in container.values()) if isinstance(container, dict) else 0


def _both(mapping: Mapping[Any, Any]) -> Iterator[Any]:
    yield from mapping.keys()
    yield from mapping.values()


def _captured(function: types.FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not set yet


def _fields(each: object) -> dict[str, object]:
    slots = (name for base in type(each).__mro__ for name in getattr(base, "__slots__", ()))
    found = {name: getattr(each, name) for name in slots if hasattr(each, name)}
    return found | getattr(each, "__dict__", {})
