"""Verbs of the ``onewriter`` command for administrators. They ask a running broker, or read its data if none
is running.
"""
