"""The operator: what Kubernetes declares reaches the brokers, what brokers do shows in Kubernetes.

``docs/operator.md`` says what it does for whom; ARCHITECTURE.md where it does it.
"""
