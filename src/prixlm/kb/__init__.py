"""A KB folder: its tables, its splits, and its triples as one graph."""
