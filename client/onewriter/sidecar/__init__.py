"""``onewriter sidecar``: leads a topic for an application in any language, over local HTTP.

cli (command line, environment) → app (composition, signals) → http (paths) → publish, leadership, ownerships,
map_http → candidate (sessions, resume info), maps (open maps) → the SDK. docs/sidecar.md is its reference.
"""
