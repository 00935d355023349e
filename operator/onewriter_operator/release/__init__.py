"""What the chart's hooks run: wait until an installation is ready, and leave nothing stuck behind it."""
