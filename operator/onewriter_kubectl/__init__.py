"""``kubectl onewriter``: who writes a topic in Kubernetes, why, and how to change that.

It asks the API server through ``kubectl``, with the caller's own configuration and rights. What only
brokers know (the whole history) comes from their HTTP interface through a port-forward. It decides
nothing that counts: a fence is an annotation that the operator carries out.
"""
