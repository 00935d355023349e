"""Seeded hostile input: frames of the wire protocol and HTTP requests, shaped like real ones and broken in
places.
"""
