"""The compiled engine. All its loops run once at the start, so that nothing is compiled during a cleaning. Owner: the
worker."""

import numpy as np

from barnabas.base.compiled import is_kept
from barnabas.broker.storage.cleaner.compiled import kernels
from barnabas.broker.storage.cleaner.compiled.batch_filter import CompiledBatchFilter
from barnabas.broker.storage.cleaner.compiled.key_map import BatchTable, CompiledDirtyMap, new_table
from barnabas.broker.storage.cleaner.engine import Engine
from barnabas.broker.storage.cleaner.transactions import TransactionTracker
from barnabas.wire.record_kernels import Int64s, byte_array
from barnabas.wire.records import BatchBuilder


class NotKept(Exception):
    """Numba cannot store machine code: each worker would compile for many seconds."""


def ready() -> Engine:
    """Return the engine. Raises numba's errors if it cannot compile, or cannot store what it has compiled."""
    if not is_kept(kernels.write_batches):
        raise NotKept("numba can write its cache neither beside the package, nor below the home, nor below TMPDIR")
    warm_up()
    return Engine(CompiledDirtyMap, CompiledBatchFilter)


def warm_up() -> None:
    """Run every loop once, with the types that a cleaning uses."""
    builder = BatchBuilder()
    builder.append(b"key", b"1", timestamp=0)
    builder.append(b"key", b"2", timestamp=1)
    piece = bytes(builder.build())
    keys = CompiledDirtyMap(1 << 20, TransactionTracker(()))
    keys.index(piece)
    keys.close()
    keys.flags_of_clean(piece)
    data, flags = byte_array(piece), byte_array(keys.flags)
    table = BatchTable()
    table.read(piece, data)
    rows = table.rows
    numbers: Int64s = np.zeros((1, kernels.STATE_WIDTH), dtype=np.int64)
    out = np.empty(len(piece), dtype=np.uint8)
    rows[:, kernels.FATE] = kernels.GONE
    kernels.judge_batches(rows, flags, numbers[0], 0)
    kernels.write_batches(data, byte_array(b""), rows, flags, 0, 0, out, numbers[0], numbers, numbers)
    kernels.pick_records(data, 0, 0, flags, False, 0, 0, out, 0)
    kernels.count_missing(new_table(2), np.ones((1, 2), dtype=np.uint64))
    kernels.move(new_table(2), new_table(4))
