"""The table of settings, one module per family. `barnabas.core.config.catalog` puts them together."""
