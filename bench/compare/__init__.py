"""The same wire scenarios played on Apache Pulsar and on onewriter, written to docs/comparison.md.

stage.py is what a scenario plays on, scenario.py how rounds are counted; deposing.py, returning.py
and waiting.py are the scenarios; table.py is the decision table of the access modes; report.py
writes the page. Nothing here knows which broker answers, and nothing is written that this very run
did not measure. Speeds are bench/run.py's business.
"""
