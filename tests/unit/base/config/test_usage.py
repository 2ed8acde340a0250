"""Settings without effect are named once, documented, and cost nothing to load."""

import subprocess
import sys
from pathlib import Path

from barnabas.base.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS
from barnabas.base.config.usage import broker_notices, meant_setting, without_effect

ROOT = Path(__file__).resolve().parents[4]


def test_setting_without_effect_is_named() -> None:
    assert broker_notices(["num.io.threads", "log.dirs"]) == [
        "num.io.threads has no effect: one event loop serves all connections and requests"
    ]


def test_notice_of_an_unknown_name_offers_the_nearest_one() -> None:
    assert broker_notices(["log.retention.hour", "x"]) == [
        "log.retention.hour is not a known setting and is ignored; did you mean log.retention.hours?",
        "x is not a known setting and is ignored",
    ]
    assert meant_setting("listener.name.internal.max.connection") == "; did you mean max.connections?"


def test_known_names_with_prefixes_pass_in_silence() -> None:
    names = ["config.providers", "config.providers.env.class", "listener.name.x.max.connections", "super.users"]
    assert broker_notices(names) == []


def test_listeners_own_value_of_a_setting_without_effect_is_named() -> None:
    assert broker_notices(["listener.name.x.num.network.threads"]) == [
        "listener.name.x.num.network.threads has no effect: one event loop serves all connections and requests"
    ]


def test_limit_in_a_file_is_named() -> None:
    assert "set dynamically only" in broker_notices(["leader.replication.throttled.rate"])[0]


def test_topic_setting_and_the_broker_setting_it_inherits_from_agree_on_having_an_effect() -> None:
    for name, setting in TOPIC_SETTINGS.items():
        if setting.server_default is not None:
            assert setting.is_effective == BROKER_SETTINGS[setting.server_default].is_effective, name


def test_settings_without_effect_are_listed_for_users() -> None:
    listed = (ROOT / "docs" / "deviations.md").read_text()
    for setting in without_effect(BROKER_SETTINGS) + without_effect(TOPIC_SETTINGS):
        assert f"`{setting.name}`" in listed


def test_documents_are_current() -> None:
    script = ROOT / "scripts" / "generate_config_doc.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_drags_in_nothing_heavy() -> None:
    program = (
        "import sys; from barnabas.base.config import broker, describe, properties, usage; print(*sorted(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncio", "socket", "kazoo", "kio", "uvloop", "difflib", "json", "logging"} & set(loaded)
