"""Key mappings from released weights to the models of this package, one module per source.

Each function ``convert_*`` takes tensors by name, which are not modified, and returns
:data:`.key_mapping.Converted`. It raises the errors of :class:`.key_mapping.KeyMap`.
"""
