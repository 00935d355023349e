"""What every part of onewriter shares: names and numbers, errors, the topic machine, the wire codec.

Nothing in here performs I/O, reads a clock or draws a random number.
"""
