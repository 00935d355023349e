"""The loopback relay: stock clients of Pulsar reach the brokers through it, and notice a silent broker in seconds.

splitter (frames in a stream of bytes) → answers (commands of brokers that the relay changes) → link (one client and its
connection to a broker) → listener (sockets, limits, the watch). docs/sidecar.md describes it to users, ADR 0022 to
developers.
"""
