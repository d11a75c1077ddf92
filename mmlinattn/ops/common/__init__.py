"""Parts that the operators share; nothing here imports an operator."""
