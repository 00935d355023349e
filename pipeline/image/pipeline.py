"""onewriter-pipeline as a file: what spark-submit and the operators of Spark want to be given."""

from onewriter_pipeline.cli import main

if __name__ == "__main__":
    main()
