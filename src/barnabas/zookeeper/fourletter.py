"""Four-letter words: `echo ruok | nc host port`, with the texts of ZooKeeper 3.8. Owner: the event loop.

`stmk` and `gtmk` (trace masks) and `hash` (digests of the tree) are answered as by a server that has neither.
"""

import os
import sys
from typing import TYPE_CHECKING, Final

import barnabas
from barnabas.base.host import kernel

if TYPE_CHECKING:
    from barnabas.zookeeper.listener import Connection
    from barnabas.zookeeper.service import Service

WORDS = frozenset(
    [
        "conf",
        "cons",
        "crst",
        "dirs",
        "dump",
        "envi",
        "gtmk",
        "ruok",
        "stmk",
        "srst",
        "srvr",
        "stat",
        "wchc",
        "wchp",
        "wchs",
        "mntr",
        "isro",
        "hash",
    ]
)

#: `zkServer.sh status` and Kafka's tools parse this. The number is the protocol's version.
VERSION = f"3.8.4-barnabas-{barnabas.__version__}, built on 2024-02-12 22:16 UTC"

#: Words that show that the server runs, but reveal nothing about its clients.
WORDS_FOR_STRANGERS: Final = "srvr,ruok"


def is_known(word: bytes) -> bool:
    return word.decode("latin-1") in _ANSWERS or word == b"stmk"


def answer(word: bytes, argument: bytes, service: "Service") -> str:
    """Return the whole answer. As in ZooKeeper, words outside the whitelist get an explanation; `srvr` is always allowed."""
    name = word.decode("latin-1")
    if name != "srvr" and not _is_enabled(name, service.config.four_letter_whitelist or WORDS_FOR_STRANGERS):
        return f"{name} is not executed because it is not in the whitelist.\n"
    return _ANSWERS[name](service) if name != "stmk" else str(int.from_bytes(argument, "big", signed=True))


def _is_enabled(name: str, whitelist: str) -> bool:
    allowed = {entry.strip() for entry in whitelist.split(",")}
    return "*" in allowed or name in allowed


def _lines(*lines: str) -> str:
    return "".join(line + "\n" for line in lines)


def _conf(service: "Service") -> str:
    config = service.config
    folder = service.store.folder.absolute()
    return _lines(
        f"clientPort={service.port}",
        "secureClientPort=-1",
        f"dataDir={folder}",
        f"dataDirSize={service.store.size_bytes('snapshot')}",
        f"dataLogDir={folder}",
        f"dataLogSize={service.store.size_bytes('log')}",
        f"tickTime={config.tick_time_ms}",
        f"maxClientCnxns={config.max_client_cnxns}",
        f"minSessionTimeout={config.session_timeout_min_ms}",
        f"maxSessionTimeout={config.session_timeout_max_ms}",
        "clientPortListenBacklog=-1",
        "serverId=0",
    )


def _connection(connection: "Connection", *, brief: bool) -> str:
    text = f" {connection.peer}[1](queued={connection.outstanding},recved={connection.received},sent={connection.sent}"
    if not brief and connection.session_id:
        count = max(1, connection.sent)
        text += f",sid=0x{connection.session_id:x},lop={connection.last_op},est={connection.established_ms}"
        text += f",to={connection.timeout_ms}"
        if connection.last_cxid >= 0:
            text += f",lcxid=0x{connection.last_cxid:x}"
        text += (
            f",lzxid=0x{connection.last_zxid & 0xFFFFFFFFFFFFFFFF:x},lresp={int(connection.last_response_s * 1000)}"
            f",llat={connection.last_latency_ms},minlat={connection.latency_min_ms}"
            f",avglat={connection.latency_sum_ms // count},maxlat={connection.latency_max_ms}"
        )
    return text + ")"


def _cons(service: "Service") -> str:
    return _lines(*(_connection(connection, brief=False) for connection in service.connections), "")


def _crst(service: "Service") -> str:
    for connection in service.connections:
        connection.reset_stats()
    return "Connection stats reset.\n"


def _dirs(service: "Service") -> str:
    return _lines(
        f"datadir_size: {service.store.size_bytes('snapshot')}", f"logdir_size: {service.store.size_bytes('log')}"
    )


def _dump(service: "Service") -> str:
    buckets = service.machine.sessions.buckets()
    now_ms = service.clock.now_ms()
    lines = ["SessionTracker dump:", f"Session Sets ({len(buckets)})/({sum(map(len, buckets.values()))}):"]
    for bucket_ms, ids in buckets.items():
        lines.append(f"{len(ids)} expire at {bucket_ms} (in {bucket_ms - now_ms} ms):")
        lines.extend(f"\t0x{session_id:x}" for session_id in ids)
    ephemerals = service.machine.tree.ephemerals
    lines.append("ephemeral nodes dump:")
    lines.append(f"Sessions with Ephemerals ({len(ephemerals)}):")
    for session_id, paths in ephemerals.items():
        lines.append(f"0x{session_id:x}:")
        lines.extend(f"\t{path}" for path in paths)
    lines.append("Connections dump:")
    lines.append(f"Connections Sets (1)/({len(service.connections)}):")
    lines.extend(
        f"\tip: {connection.peer} sessionId: 0x{connection.session_id:x}" for connection in service.connections
    )
    return _lines(*lines)


def _envi(_service: "Service") -> str:
    import platform  # slow to import, and only needed here

    uname = platform.uname()
    return _lines(
        "Environment:",
        f"zookeeper.version={VERSION}",
        f"host.name={uname.node}",
        f"python.version={platform.python_version()}",
        f"python.implementation={platform.python_implementation()}",
        f"python.executable={sys.executable}",
        f"os.name={uname.system}",
        f"os.arch={uname.machine}",
        f"os.version={uname.release}",
        f"user.home={os.path.expanduser('~')}",  # noqa: PTH111
        f"user.dir={os.getcwd()}",  # noqa: PTH109
    )


def _server_block(service: "Service") -> list[str]:
    stats = service.stats
    return [
        f"Latency min/avg/max: {stats.latency_min_ms}/{stats.latency_avg_ms:.4f}/{stats.latency_max_ms}",
        f"Received: {stats.packets_received}",
        f"Sent: {stats.packets_sent}",
        f"Connections: {len(service.connections)}",
        f"Outstanding: {service.commit.held_count}",
        f"Zxid: 0x{service.machine.last_zxid:x}",
        "Mode: standalone",
        f"Node count: {len(service.machine.tree.nodes)}",
    ]


def _srvr(service: "Service") -> str:
    return _lines(f"Zookeeper version: {VERSION}", *_server_block(service))


def _stat(service: "Service") -> str:
    clients = [_connection(connection, brief=True) for connection in service.connections]
    return _lines(f"Zookeeper version: {VERSION}", "Clients:", *clients, "", *_server_block(service))


def _srst(service: "Service") -> str:
    service.stats.reset()
    return "Server stats reset.\n"


def _wchs(service: "Service") -> str:
    watches = service.machine.tree.data_watches
    return _lines(
        f"{watches.client_count} connections watching {watches.path_count} paths",
        f"Total watches:{watches.watch_count}",
    )


def _wchc(service: "Service") -> str:
    lines: list[str] = []
    for client, paths in service.machine.tree.data_watches.by_client().items():
        lines.append(f"0x{client.session_id:x}")
        lines.extend(f"\t{path}" for path in paths)
    return _lines(*lines, "")


def _wchp(service: "Service") -> str:
    lines: list[str] = []
    for path, clients in service.machine.tree.data_watches.by_path().items():
        lines.append(path)
        lines.extend(f"\t0x{client.session_id:x}" for client in clients)
    return _lines(*lines, "")


def _mntr(service: "Service") -> str:
    import resource

    stats, tree = service.stats, service.machine.tree
    room = os.statvfs(service.store.folder)
    watch_count = tree.data_watches.watch_count + tree.child_watches.watch_count
    values = {
        "version": VERSION,
        "server_state": "standalone",
        "avg_latency": f"{stats.latency_avg_ms:.4f}",
        "max_latency": stats.latency_max_ms,
        "min_latency": stats.latency_min_ms,
        "packets_received": stats.packets_received,
        "packets_sent": stats.packets_sent,
        "num_alive_connections": len(service.connections),
        "outstanding_requests": service.commit.held_count,
        "uptime": int((service.clock.monotonic_s() - service.started_s) * 1000),
        "znode_count": len(tree.nodes),
        "watch_count": watch_count,
        "ephemerals_count": sum(map(len, tree.ephemerals.values())),
        "approximate_data_size": tree.data_bytes,
        "global_sessions": len(service.machine.sessions.by_id),
        "local_sessions": 0,
        "open_file_descriptor_count": kernel.open_descriptors(),
        "max_file_descriptor_count": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "fsync_count": service.commit.flush_count,
        # Not one of Apache's: `barnabas doctor` warns before the log cannot be written any more.
        "data_dir_total_bytes": room.f_blocks * room.f_frsize,
        "data_dir_usable_bytes": room.f_bavail * room.f_frsize,
    }
    return _lines(*(f"zk_{name}\t{value}" for name, value in values.items()))


_ANSWERS = {
    "conf": _conf,
    "cons": _cons,
    "crst": _crst,
    "dirs": _dirs,
    "dump": _dump,
    "envi": _envi,
    "gtmk": lambda _service: "306",
    "hash": lambda _service: "",
    "isro": lambda _service: "rw",
    "mntr": _mntr,
    "ruok": lambda _service: "imok",
    "srst": _srst,
    "srvr": _srvr,
    "stat": _stat,
    "wchc": _wchc,
    "wchp": _wchp,
    "wchs": _wchs,
}
