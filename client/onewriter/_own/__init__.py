"""Ownership of resources: ``own`` contains the public classes, ``requests`` the requests to brokers."""
