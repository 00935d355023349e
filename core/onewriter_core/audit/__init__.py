"""The audit of logs: the promises that stored blocks and audit records can show.

``onewriter verify`` checks one log after the other with it, directly in the store. The pipeline's audit checks many
logs, whose blocks its tasks read through the brokers or from tables.

Both convert what is stored to ``facts``; ``blocks`` does this for what a block shows without its entries. ``logs``
checks the facts of one log in their stored order, with ``sequences``, ``publishes`` and ``publishers``. ``records``
parses the audit records of a bucket, and ``grants`` checks them. docs/invariants.md describes each predicate.
"""
