#!/usr/bin/env python
"""Script of the command ``python -m mmlinattn export``."""

import sys

from mmlinattn.cli.export import main

if __name__ == '__main__':
    sys.exit(main())
