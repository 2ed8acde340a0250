"""Authentication: SASL mechanisms, both sides, and TLS contexts. No sockets."""
