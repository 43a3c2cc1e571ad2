"""Enrichment: find what a language lacks, propose it, have it reviewed, export it."""
