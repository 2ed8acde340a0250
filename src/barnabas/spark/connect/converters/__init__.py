"""Connect's converters: the bytes of keys, values and headers to its data, and back."""
