"""``onewriter sidecar``: holds a topic for an application in any language, over local HTTP.

cli (command line, environment) → app (composition, signals) → http (paths) → publishing, events,
owning, sharing → candidate (sessions, resume info), maps (which are open) → the SDK. docs/sidecar.md is its reference.
"""
