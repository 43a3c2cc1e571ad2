"""Evaluation: the tasks of the paper, and the commands that reproduce its tables."""
