"""File descriptors: how many this process may have, and how many of them are not for connections.

Connections come as strangers like it; files, other brokers and ZooKeeper are what the broker is for. So the last descriptors
are kept for those, and running out of them says nothing about a disk.
"""

import errno
import resource

#: Of all descriptors, a quarter is kept from connections: a log takes about four, a link to a broker one.
RESERVE_SHARE = 4
RESERVE_MIN, RESERVE_MAX = 64, 4096
#: More than this is no use: the kernel's tables grow with the highest descriptor.
SOFT_LIMIT_MAX = 1_048_576
#: The loop reads from one, and answers go out by a duplicate of it.
PER_CONNECTION = 2
#: Descriptors of a segment that is open: its log and the maps of its two indexes.
PER_SEGMENT = 3
#: The pause before something is tried again for which no descriptor was free.
WAIT_S = 1.0


def limit() -> int:
    """How many descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return SOFT_LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Take what the system allows: shells and old service managers start with 1024. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SOFT_LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, SOFT_LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def for_connections() -> int:
    """Descriptors below this number may become connections; the system gives out the lowest that is free."""
    total = limit()
    return total - max(RESERVE_MIN, min(total // RESERVE_SHARE, RESERVE_MAX))


def for_brokers() -> int:
    """The same on a listener of their own: half of the reserve is for them."""
    return (limit() + for_connections()) // 2


def open_segments_max() -> int:
    """Inactive segments that may keep their files open, out of half the reserve."""
    return max(8, min(1000, (limit() - for_connections()) // 2 // PER_SEGMENT))


def are_exhausted(error: OSError) -> bool:
    """Whether a call failed for want of a descriptor, and not because of what it was about."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def half_way(error: OSError, what: str) -> OSError:
    """The error of a change that was carried out in part. That must count, whatever a disk can do about it: `what` is then
    neither what it was nor what it was to become."""
    return OSError(errno.EIO, f"{what} was changed in part: {error.strerror}") if are_exhausted(error) else error
