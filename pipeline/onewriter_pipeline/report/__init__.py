"""The history of holders as pictures and as a page."""
