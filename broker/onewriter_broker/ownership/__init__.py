"""Bucket ownership: which broker may write to which bucket of which dataset, and which brokers are alive."""
