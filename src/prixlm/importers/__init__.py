"""Dumps in: one file per format, and the steps that turn its rows into a KB folder."""
