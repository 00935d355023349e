"""The leader process of one driver: started by ``leader.py``, never by a person."""

from onewriter_pipeline.lead.process import main

main()
