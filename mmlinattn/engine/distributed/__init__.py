"""Distributed launch, FSDP, and resume with another number of processes."""
