"""Warnings about settings that were given: those without effect, and unknown names."""

from collections.abc import Iterable, Mapping

from barnabas.base.config.catalog import (
    BROKER_SETTINGS,
    DYNAMIC_ONLY_SETTINGS,
    broker_setting,
    listener_base_name,
)
from barnabas.base.config.definition import Setting
from barnabas.base.config.properties import PROVIDERS


def without_effect(settings: Mapping[str, Setting]) -> list[Setting]:
    return [setting for setting in settings.values() if not setting.is_effective]


#: Begin the names of settings that tiered storage hands on, unless somebody chose other prefixes.
HANDED_ON = ("rsm.config.", "rlmm.config.")


def broker_notices(names: Iterable[str]) -> list[str]:
    """One line for each name that is unknown or without effect."""
    return [line for name in names if not name.startswith(HANDED_ON) and (line := _broker_notice(name))]


def volatile_log_dirs(directories: Iterable[str]) -> list[str]:
    """A warning for each directory that the system may delete."""
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
        meant = closest(name)
        return f"{name} is not a known setting and is ignored" + (f"; did you mean {meant}?" if meant else "")
    if setting.no_effect:
        return f"{name} has no effect: {setting.no_effect}"
    return None


def closest(name: str) -> str | None:
    """The known broker setting that is most like `name`, for a message."""
    import difflib  # only needed after a mistake

    plain = listener_base_name(name) or name
    found = difflib.get_close_matches(plain, BROKER_SETTINGS, n=1, cutoff=0.8)
    return found[0] if found else None
