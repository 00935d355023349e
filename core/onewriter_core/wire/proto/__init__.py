"""Pulsar's messages as protobuf classes, generated from PulsarApi.proto by generate.py."""
