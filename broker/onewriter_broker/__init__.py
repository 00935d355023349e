"""The broker: sockets, sessions, topic runners, the log store, dispatch and administration.

ARCHITECTURE.md names its packages and the direction of their imports.
"""
