"""Decisions: facts in, actions and status out. No I/O, no clock, no randomness."""
