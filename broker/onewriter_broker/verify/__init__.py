"""``onewriter verify``: what the stored log and audit can show of the promises.

The checkers are pure and take what was stored piece by piece: ``audit`` the records of a bucket,
``logs`` the blocks of one log, ``sequences`` what producers numbered. ``reader`` feeds them from a
log store, ``report`` says what was found, ``cli`` is the verb. docs/invariants.md says what each
predicate means and which part of it needs a client's own history instead.
"""
