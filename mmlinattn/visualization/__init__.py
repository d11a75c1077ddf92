"""Figures of predictions, decoder attention maps, key weights and patch embeddings."""
