"""Curves of a training."""
