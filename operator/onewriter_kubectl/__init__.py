"""``kubectl onewriter``: shows who writes a topic in Kubernetes and why, and changes the writer.

The plugin asks the API server through ``kubectl``, with the caller's configuration and rights. It reads
the full history, which only brokers have, from their HTTP interface through a port-forward. It makes no
decisions: a fence is an annotation that the operator executes.
"""
