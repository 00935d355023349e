"""``python -m onewriter_pipeline``: the onewriter-pipeline command."""

from onewriter_pipeline.cli import main

if __name__ == "__main__":
    main()
