"""Start and end of distributed processes, and a wrapper of models with several optimizers."""
