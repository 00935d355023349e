"""The operator: sends the declarations in Kubernetes to the brokers, and writes their state to Kubernetes.

``docs/operator.md`` describes it for users, ARCHITECTURE.md its modules.
"""
