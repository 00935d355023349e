"""A fake store server that executes the real Lua scripts: for tests, simulations and ``onewriter.testing``.

The fake replaces the server, not the store: ``RedisLogStore`` and the scripts run on it as in production. fakeredis was
not chosen because it has no replication (``master_replid``, lagging replicas, WAIT), no append-only file to tear, and
takes times and ids from clocks.

=============  ===================================================================================
keyspace.py    hashes and streams
commands.py    the commands that the store and its scripts use
scripting.py   Lua 5.1 with ``redis.call`` and ``redis.pcall``
server.py      nodes with replication and an append-only file; what happens to them
store.py       ``FakeLogStore``: the production store over a fake node, with faults on request
=============  ===================================================================================

Everything is deterministic: no clock, no randomness. No production code runs on it.
"""
