"""Settings: ZooKeeper's keys, checked once, with errors that give valid values."""

from pathlib import Path

import pytest

from barnabas.base.errors import ConfigError
from barnabas.zookeeper.config import ZooKeeperConfig, read_config


def test_every_key_reaches_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "zoo.cfg"
    path.write_text(
        "# a comment\n! another\n\ntickTime=500\nminSessionTimeout = 700\nmaxSessionTimeout=90000\nmaxClientCnxns=5\n"
        "maxCnxns=6\njute.maxbuffer=2000\nglobalOutstandingLimit=7\nsnapCount=8\nautopurge.snapRetainCount=9\n"
        "4lw.commands.whitelist=ruok\nforceSync=no\nznode.container.checkIntervalMs=10\n"
        "DigestAuthenticationProvider.superDigest=super:abc=\n"
        "dataDir=/somewhere\nclientPort=2182\nclientPortAddress=0.0.0.0\nadmin.enableServer=false\n"
    )
    file = read_config(path)
    assert (file.data_dir, file.host, file.port) == (Path("/somewhere"), "0.0.0.0", 2182)
    assert file.config == ZooKeeperConfig(
        tick_time_ms=500,
        min_session_timeout_ms=700,
        max_session_timeout_ms=90_000,
        max_client_cnxns=5,
        max_cnxns=6,
        jute_max_buffer=2000,
        global_outstanding_limit=7,
        snap_count=8,
        snap_retain_count=9,
        four_letter_whitelist="ruok",
        force_sync=False,
        container_check_interval_ms=10,
        super_digest="super:abc=",
    )


def test_session_limits_follow_the_tick_unless_set() -> None:
    config = ZooKeeperConfig(tick_time_ms=300)
    assert (config.session_timeout_min_ms, config.session_timeout_max_ms) == (600, 6000)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tickTime=-1", "tickTime=-1: must be positive"),
        ("minSessionTimeout=9\nmaxSessionTimeout=8", "is above maxSessionTimeout=8"),
        ("jute.maxbuffer=1", "must be at least 1024"),
        ("snapCount=1", "must be at least 2"),
        ("maxClientCnxns=-1", "must be at least 0"),
        ("forceSync=maybe", "must be yes or no"),
        ("snapCount=many", "must be a number"),
        ("nonsense", "is not key=value"),
        ("server.1=a:2888:3888", "describes an ensemble"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "zoo.cfg"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match=message):
        read_config(path)
