"""Rankers: one protocol, and one file per kind of evidence for the object of a query."""
