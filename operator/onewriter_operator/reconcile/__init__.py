"""Reconciles: gather the facts about one object, make the plan, perform its actions.

One module per kind. Decisions are in ``plan``; calls in ``kube`` and ``brokers``.
"""
