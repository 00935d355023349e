"""The HTTP interface: the subset of Pulsar's admin API, onewriter's own API, health and metrics, on one port."""
