"""Which way of combining SFT and RL is best for a model and its data: the same data, one budget, real intervals."""
