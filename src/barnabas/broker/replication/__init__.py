"""Replication of partitions: leadership, the in-sync replicas, the high watermark, and followers that copy from leaders."""
