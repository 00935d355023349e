"""``onewriter verify``: checks the promises that the stored log and audit can show.

The checkers are pure and get what is stored piece by piece: ``audit`` the records of a bucket, ``logs`` the
blocks of one log, ``sequences`` the sequence ids of producers. ``reader`` reads the store and feeds them;
``cli`` is the verb. docs/invariants.md describes each predicate, and which part of it needs a client's own
history instead.
"""
