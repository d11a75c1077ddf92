#!/usr/bin/env python
"""Script of the command ``python -m mmlinattn test``."""

import sys

from mmlinattn.cli.test import main

if __name__ == '__main__':
    sys.exit(main())
