"""Logs whose topics get other settings: they are no longer compacted, or compacted again, and their indexes become smaller. A
follower gets what a leader has left of a topic that it once compacted."""

from dataclasses import replace

from barnabas.base.config.log_config import CLEANUP_COMPACT, CLEANUP_DELETE, LogConfig
from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.log_types import Origin
from barnabas.wire.records import BatchBuilder
from tests.simulation.storage_ledger import check_indexes
from tests.simulation.storage_moves import OTHER
from tests.simulation.storage_world import COMPACTED, PLAIN, ROOT, StorageWorld


class ChangingWorld(StorageWorld):
    roots = (ROOT, OTHER)
    is_tiering = True

    def __init__(self, seed: int, *, journaled: bool = False) -> None:
        #: The directory whose disk fails.
        self._failing = ""
        super().__init__(seed, journaled=journaled)

    def _dir_failed(self, path: str, partitions: list[TopicPartition]) -> None:
        assert path == self._failing, f"{path} went offline"

    def run_changes(self, rounds: int) -> None:
        for _ in range(rounds):
            self._change_indexes()
            self._follow_a_leader_that_compacted()
            if self.rng.random() < 0.5:
                self._stop_compacting()
            how = self.rng.choice(("kill", "clean", "power"))
            if how == "power":
                # Where offsets are missing anyway, a start cannot tell that the power took more of them.
                self.durable(PLAIN)
                self.durable(COMPACTED)
            self.restart(how)
        self._leave_the_tier()

    def _set(self, topic: str, **settings: object) -> None:
        self.tell(f"{topic}: {settings}")
        config = self.configs[topic] = replace(self.configs[topic], **settings)  # type: ignore[arg-type]
        self.manager.topic_settings_changed(topic, config)

    # -- indexes

    def _change_indexes(self) -> None:
        rng, log, ledger = self.rng, self.log(PLAIN), self.ledgers[PLAIN]
        settings = {
            "segment_index_bytes": rng.choice((48, 120, 600, 2000)),
            "index_interval_bytes": rng.choice((1, 200, 500)),
        }
        if rng.random() < 0.5:
            self._set("plain", **settings)
        else:
            # Somebody changes them while the broker is down.
            self.configs["plain"] = replace(self.configs["plain"], **settings)
            self.tell(f"plain: {settings}, and a restart")
            self.restart(rng.choice(("kill", "clean")))
            log = self.log(PLAIN)
        for _ in range(rng.randint(2, 30)):
            builder = BatchBuilder()
            self.clock.advance_ms(1)
            builder.append(b"k", b"value", timestamp=self.clock.now_ms())
            self.append_data(PLAIN, log, ledger, bytes(builder.build()), Origin.CLIENT)
        log.update_high_watermark(log.log_end_offset)
        check_indexes(log)

    # -- offsets that are left out

    def _follow_a_leader_that_compacted(self) -> None:
        rng, log = self.rng, self.log(PLAIN)
        for _ in range(rng.randint(1, 20)):
            batch = self._keyed()
            will_roll = log.segments.active.should_roll(
                size_bytes=len(batch),
                max_timestamp=self.clock.now_ms(),
                last_offset=int(log.log_end_offset),
                now_ms=self.clock.now_ms(),
                segment_bytes=log.config.segment_bytes,
                roll_ms=log.config.roll_ms,
            )
            # Often where a follower begins a segment.
            is_leaving_out = rng.random() < (0.5 if will_roll else 0.02)
            self.follow(batch, gap=rng.randint(1, 5) if is_leaving_out else 0)
        log.update_high_watermark(log.log_end_offset)

    # -- the end of a topic's compaction

    def _stop_compacting(self) -> None:
        """Also in the middle of one: a worker reads the segments, and retention has to wait for it."""
        rng, log, ledger = self.rng, self.log(COMPACTED), self.ledgers[COMPACTED]
        self._set("compacted", cleanup_policy=frozenset({CLEANUP_COMPACT}), retention_bytes=-1)
        for _ in range(rng.randint(2, 4)):
            for _ in range(rng.randint(2, 6)):
                self.append_data(COMPACTED, log, ledger, self._keyed(), Origin.CLIENT)
            log.roll(self.clock.now_ms())
        self.durable(COMPACTED)
        log.update_high_watermark(log.log_end_offset)
        self.clock_runs(rng.choice((2000, 2500)))
        for _ in range(rng.choice((0, 0, 0, 1, 3))):
            self.threads.run_one()
        self._set(
            "compacted", cleanup_policy=frozenset({CLEANUP_DELETE}), retention_bytes=rng.choice((0, 3000, 20_000))
        )
        self.clock_runs(8000)
        for _ in range(rng.choice((0, 1, 5))):
            self.threads.run_one()
        if rng.random() < 0.5:
            self.threads.run_pending()
            self.clock_runs(8000)

    # -- the end of a topic's tiering

    def _leave_the_tier(self) -> None:
        """A log that leaves the tier writes its leader epochs, and its disk fails as it does. The others have to leave too."""
        tiered = LogConfig(segment_bytes=16_000, remote_storage_enable=True, local_retention_bytes=0, retention_ms=-1)
        self.configs["tiered"] = tiered
        logs = []
        for number, root in enumerate(self.roots):
            partition = TopicPartition("tiered", number)
            self.manager.prefer_dir(partition, root)
            log = self.manager.get_or_create(partition, topic_id=None, is_new=True)
            log.append_as_leader(bytearray(self._keyed()), leader_epoch=0, now_ms=self.clock.now_ms())
            log.roll(self.clock.now_ms())
            log.append_as_leader(bytearray(self._keyed()), leader_epoch=0, now_ms=self.clock.now_ms())
            log.update_high_watermark(log.log_end_offset)
            log.highest_copied_offset = 0
            log.delete_old_segments(self.clock.now_ms())
            logs.append(log)
        self.threads.run_pending()
        assert [log.local_log_start_offset for log in logs] == [1, 1]
        self._failing = self.rng.choice(self.roots)
        self.tell(f"{self._failing} fails")
        self.disk.fail_writes(self._failing)
        self._set("tiered", remote_storage_enable=False, remote_log_delete_on_disable=True)
        left = self.configs["tiered"]
        assert all((log.config, log.log_start_offset) == (left, 1) for log in logs if log.log_dir != self._failing)
