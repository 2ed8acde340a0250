"""TLS contexts and key stores, without sockets."""
