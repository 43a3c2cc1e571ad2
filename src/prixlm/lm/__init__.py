"""The language model: fact format, token cache, bases, model, fast kernels, and its lineage."""
