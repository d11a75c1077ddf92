#!/usr/bin/env python
"""Script of the command ``python -m mmlinattn train``."""

import sys

from mmlinattn.cli.train import main

if __name__ == '__main__':
    sys.exit(main())
