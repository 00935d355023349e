"""The leader process of one driver: started by ``asking.py``, never by a person."""

from onewriter_pipeline.lead.process import main

main()
