"""What every part of onewriter shares: names and numbers, errors, the topic machine, the wire codec.

Nothing in here reads a clock or draws a random number, and only ``api.manifests`` (files) and
``command`` (the terminal) perform I/O.
"""
