"""What the documentation is made with: the site, and reference pages that follow from the code."""
