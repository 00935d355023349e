"""Brokers for tests, reached through ``onewriter.testing``. No other module of the broker imports this package."""
