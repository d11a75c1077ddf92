#!/usr/bin/env python
"""Script of the command ``python -m mmlinattn complexity``."""

import sys

from mmlinattn.cli.complexity import main

if __name__ == '__main__':
    sys.exit(main())
