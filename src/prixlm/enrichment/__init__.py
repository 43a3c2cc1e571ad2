"""Enrichment: find what a language lacks and propose it, with a confidence."""
