"""What `barnabas dump-log` prints: log segments, indexes, snapshots, in the words of Kafka's own tool."""
