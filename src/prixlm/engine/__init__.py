"""Where work runs: in this process, in several local ones, or on a Ray cluster."""
