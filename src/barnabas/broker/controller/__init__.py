"""The controller: the one broker that watches the others come and go, and elects the leader of each partition."""
