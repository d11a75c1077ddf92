"""Start, communication and end of distributed processes."""
