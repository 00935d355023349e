"""The leader process of one driver; ``leader.py`` starts it."""

from onewriter_pipeline.lead.process import main

main()
