"""Figures for people: tables of results, plots, and text for the terminal."""
