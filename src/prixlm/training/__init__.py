"""Training: the loop, its checkpoints, the sampler of facts, pretraining and its estimate."""
