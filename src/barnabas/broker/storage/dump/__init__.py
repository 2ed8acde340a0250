"""The output of `barnabas dump-log`: log segments, indexes, snapshots, in the format of Kafka's own tool."""
