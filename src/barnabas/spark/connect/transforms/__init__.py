"""Connect's single message transforms and predicates, as functions of one record."""
