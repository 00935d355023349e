"""Owning resources: ``own`` is the public part, ``requests`` asks the brokers."""
