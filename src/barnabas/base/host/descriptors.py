"""File descriptors: how many this process may have, and how many of them are reserved.

Strangers decide how many connections there are, but a broker must keep descriptors for files, other brokers and ZooKeeper. So
the last descriptors are reserved for those, and running out of descriptors is not treated as a disk failure.
"""

import errno
import resource

#: A quarter of all descriptors is reserved: a log takes about four, a connection to another broker one.
RESERVE_SHARE = 4
RESERVE_MIN, RESERVE_MAX = 64, 4096
#: A higher limit is of no use: the kernel's tables grow with the highest descriptor.
SOFT_LIMIT_MAX = 1_048_576
#: Descriptors per connection: the loop reads from one, and responses are sent through a duplicate.
PER_CONNECTION = 2
#: Descriptors of an open segment: its log and the maps of its two indexes.
PER_SEGMENT = 3
#: Pause before an operation that found no free descriptor is tried again.
WAIT_S = 1.0


def limit() -> int:
    """Return how many descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return SOFT_LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Raise the limit to what the system allows, because shells and old service managers start with 1024; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SOFT_LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, SOFT_LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def for_connections() -> int:
    """Return the bound for descriptors of connections. The system always gives out the lowest free descriptor."""
    total = limit()
    return total - max(RESERVE_MIN, min(total // RESERVE_SHARE, RESERVE_MAX))


def for_brokers() -> int:
    """Return the bound on a listener for brokers only: half of the reserve is for them."""
    return (limit() + for_connections()) // 2


def open_segments_max() -> int:
    """Return how many inactive segments may keep their files open, with half the reserve."""
    return max(8, min(1000, (limit() - for_connections()) // 2 // PER_SEGMENT))


def are_exhausted(error: OSError) -> bool:
    """Return whether a call failed only because no descriptor was free."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def half_way(error: OSError, what: str) -> OSError:
    """Return the error for a change that was made only in part. It counts as a disk error even if the cause is a lack of
    descriptors, because `what` is now neither in its old nor in its new state."""
    return OSError(errno.EIO, f"{what} was changed in part: {error.strerror}") if are_exhausted(error) else error
