"""``onewriter verify``: checks the promises that the stored log and audit can show.

The checks are those of ``onewriter_core.audit``, which the pipeline's audit uses, too. ``reader`` reads the store,
``observer`` converts blocks to facts, ``compacted`` checks compacted views, and ``cli`` is the verb.
docs/invariants.md describes each predicate, and which part of it needs a client's own history instead.
"""
