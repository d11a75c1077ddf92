"""Models beside the core, registered only when a config names their folder in custom_imports."""
