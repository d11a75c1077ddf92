"""Figures of predictions, decoder attention maps and key weights."""
