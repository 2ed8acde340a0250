"""The table of settings, one module per family. `barnabas.base.config.catalog` puts them together."""
