"""What operators share; nothing here imports an operator."""
