"""Kubernetes objects and names that the operator and the kubectl plugin share. No I/O."""
