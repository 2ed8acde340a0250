"""The command line: processes to start, and Kafka's tools with Kafka's flags."""
