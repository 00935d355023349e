"""Visits: gather the facts about one object, ask the plan, perform what it says.

One module per kind. Decisions are in ``plan``; calls in ``kube`` and ``brokers``.
"""
