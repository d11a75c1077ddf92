"""Argument parsers of the commands, importable without torch and the frameworks.

The docstring of each function is the help text of its command.

``mmlinattn COMMAND --help`` and errors in arguments are answered before the module of the command,
and with it torch, is imported. So these modules repeat a few names that the package defines
elsewhere; a test compares them.
"""
