"""The part of Pulsar's admin API that has a meaning here. docs/http.md lists its routes."""
