"""Key mappings from released weights to the models of this package, one module per source."""
