"""Connect's JDBC connectors, Confluent's and Aiven's, for PostgreSQL."""
