"""Dumps in: one file for each format, and the steps that all formats share."""
