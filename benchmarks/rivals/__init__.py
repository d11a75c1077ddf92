"""What the operators, layers and backbones of this package are measured against."""
