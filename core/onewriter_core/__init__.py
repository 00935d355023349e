"""Code that all parts of onewriter share: names and numbers, errors, the topic machine, the wire codec.

The core reads no clock and draws no random number. Only ``api.manifests`` (files) and ``command`` (the terminal)
perform I/O.
"""
