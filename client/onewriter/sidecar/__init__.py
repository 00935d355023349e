"""``onewriter sidecar``: holds a topic for an application in any language, over local HTTP.

cli (command line, environment) → app (composition, signals) → http (paths) → publishing, events →
candidate (sessions, resume info) → the SDK. docs/sidecar.md is its reference.
"""
