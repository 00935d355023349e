"""What the SDK adds to the ``onewriter`` command; each verb in a module of its own."""
