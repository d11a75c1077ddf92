"""Pictures: predictions beside ground truth, and where a detector looks."""
