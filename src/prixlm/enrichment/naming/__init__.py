"""Names for things that a language has no name for: letters, words, candidates."""
