"""Writes what of the chart follows from models: run ``python -m charts.generator``.

values.yaml, values.schema.json, the README's table, the CRD templates and the dashboard. A test
keeps them in step.
"""
