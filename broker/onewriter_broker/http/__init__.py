"""The HTTP interface: Pulsar's admin subset, onewriter's own API, health and metrics, on one port."""
