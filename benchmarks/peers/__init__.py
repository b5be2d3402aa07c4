"""Comparisons of Potluck with other systems, measured in one run on one machine; see README.md in this folder."""
