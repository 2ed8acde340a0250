"""Disk space: shared by the checks of settings and of clusters. Pure."""

from typing import Final

#: Directories that a reboot or a nightly job empties.
SHORT_LIVED: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")
#: Limits below which a disk is nearly full.
FREE_SHARE_MIN: Final = 0.05
FREE_BYTES_MIN: Final = 1 << 30


def short_lived(path: str) -> bool:
    return any(path == tree or path.startswith(tree + "/") for tree in SHORT_LIVED)


def nearly_full(total_bytes: int, free_bytes: int, share_min: float = FREE_SHARE_MIN) -> bool:
    return total_bytes > 0 and (free_bytes < total_bytes * share_min or free_bytes < FREE_BYTES_MIN)


def free_space(total_bytes: int, free_bytes: int) -> str:
    return f"{free_bytes / (1 << 30):.1f} GiB ({100 * free_bytes / total_bytes:.0f} %) left"
