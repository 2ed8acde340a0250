"""`barnabas host`: one broker for each core of a machine, from one settings file.

* `settings`: each broker's own settings, derived from the file. Pure.
* `metrics`: merges their metrics into one page. Pure.
* `supervisor`: starts them, restarts a broker that ends, restarts all in turn, stops all.
* `command`: the command line.
"""
