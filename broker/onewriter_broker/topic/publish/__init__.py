"""Atomic publishes: staged parts, their layout, and publishing them under one epoch."""
