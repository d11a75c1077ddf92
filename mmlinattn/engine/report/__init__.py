"""Report of a training: curves, scores per class, confusion matrix, precision and recall."""
