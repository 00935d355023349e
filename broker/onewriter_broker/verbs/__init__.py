"""Verbs of the ``onewriter`` command that ask a running broker, or its data when none runs."""
