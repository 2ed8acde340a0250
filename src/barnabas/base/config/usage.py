"""Warnings about given settings that have no effect or unknown names."""

from collections.abc import Iterable, Mapping

from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    DYNAMIC_ONLY_SETTINGS,
    broker_setting,
    listener_base_name,
)
from barnabas.base.config.definition import Setting
from barnabas.base.config.properties import PROVIDERS
from barnabas.base.names import did_you_mean


def without_effect(settings: Mapping[str, Setting]) -> list[Setting]:
    return [setting for setting in settings.values() if not setting.is_effective]


#: Default prefixes of settings that tiered storage passes to its plug-ins.
HANDED_ON = ("rsm.config.", "rlmm.config.")


def broker_notices(names: Iterable[str]) -> list[str]:
    """Return one line for each name that is unknown or without effect."""
    return [line for name in names if not name.startswith(HANDED_ON) and (line := _broker_notice(name))]


def volatile_log_dirs(directories: Iterable[str]) -> list[str]:
    """Return a warning for each directory that the system may delete."""
    return [
        f"log.dirs={directory} is under /tmp: the system may delete it; choose a folder that stays"
        for directory in directories
        if directory == "/tmp" or directory.startswith("/tmp/")
    ]


def _broker_notice(name: str) -> str | None:
    if name == PROVIDERS or name.startswith(f"{PROVIDERS}."):
        return None
    if name in DYNAMIC_ONLY_SETTINGS:
        return f"{name} has no effect in a file: it is set dynamically only"
    setting = broker_setting(name)
    if setting is None:
        return f"{name} is not a known setting and is ignored{meant_setting(name)}"
    if setting.no_effect:
        return f"{name} has no effect: {setting.no_effect}"
    return None


def meant_setting(name: str) -> str:
    """Return `; did you mean …?` with the nearest broker setting, or nothing."""
    return did_you_mean(listener_base_name(name) or name, BROKER_SETTINGS)
