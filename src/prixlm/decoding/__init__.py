"""Decoding: tries of candidate names, constrained search, and files of queries."""
