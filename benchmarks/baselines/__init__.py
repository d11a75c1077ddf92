"""Baselines for the operators, layers and backbones of this package."""
