"""The topics served here: loading, stepping, fencing, publishing, and what is stored of them."""
