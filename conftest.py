"""What tests of every folder may use: the real Kubernetes of tests/cluster."""

pytest_plugins = ["tests.cluster.plugin"]
