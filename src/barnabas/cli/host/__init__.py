"""`barnabas host`: one broker for each core of a machine, from one file of settings.

* `settings`: what the brokers have of their own, derived from the file. Pure.
* `metrics`: their metrics as one page. Pure.
* `supervisor`: starts them, restarts one that ends, restarts all in turn, stops all.
* `command`: the command line.
"""
