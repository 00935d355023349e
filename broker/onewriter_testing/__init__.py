"""Brokers for tests, which ``onewriter.testing`` loads. No production package imports this package."""
