"""The counters that the four-letter words report. Owner: the event loop."""

from dataclasses import dataclass


@dataclass
class ServerStats:
    packets_received: int = 0
    packets_sent: int = 0
    latency_min_ms: int = 0
    latency_max_ms: int = 0
    latency_sum_ms: int = 0
    latency_count: int = 0

    def record_latency(self, latency_ms: int, count: int) -> None:
        if not self.latency_count or latency_ms < self.latency_min_ms:
            self.latency_min_ms = latency_ms
        self.latency_max_ms = max(self.latency_max_ms, latency_ms)
        self.latency_sum_ms += latency_ms * count
        self.latency_count += count

    @property
    def latency_avg_ms(self) -> float:
        return self.latency_sum_ms / self.latency_count if self.latency_count else 0.0

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]
