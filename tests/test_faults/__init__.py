"""Inputs that are damaged at random: one clear error, or what a whole one gives."""
