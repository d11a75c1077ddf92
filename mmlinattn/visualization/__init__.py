"""Pictures: predictions beside ground truth, where a detector looks, what a query reads."""
