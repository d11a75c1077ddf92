"""Checks of annotation files and images, record by record."""
