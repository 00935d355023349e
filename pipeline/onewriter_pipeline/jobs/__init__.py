"""The verbs of onewriter-pipeline: one module each, whose click command is named ``command``."""
