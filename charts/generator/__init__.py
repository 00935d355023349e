"""Generates parts of the chart from the models: run ``python -m charts.generator``.

The parts are values.yaml, values.schema.json, the README's table, the CRD templates and the dashboard. A
test checks that the files in the chart are up to date.
"""
