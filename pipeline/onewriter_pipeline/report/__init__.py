"""The history of writers as pictures and as one page."""
