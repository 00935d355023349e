"""The programs of the chart's hooks and jobs: wait until an installation is ready; clean up before its end."""
