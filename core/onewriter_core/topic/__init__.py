"""The topic machine: who may write a topic. A pure function over frozen values (machine.py)."""
