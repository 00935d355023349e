"""One module for each verb of onewriter-pipeline; its click command is named ``command``."""
