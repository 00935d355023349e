"""onewriter for applications: ``import onewriter``.

What lives here: what an application needs beside its Pulsar client. For tests that is
``onewriter.testing``, a real broker in a few lines.
"""
