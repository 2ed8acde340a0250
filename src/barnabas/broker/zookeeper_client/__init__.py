"""ZooKeeper: paths and their JSON, sessions, and the embedded server."""
