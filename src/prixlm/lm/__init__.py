"""The language model: the fact format, the token cache, the model and what it was trained on."""
