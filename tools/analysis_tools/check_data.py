#!/usr/bin/env python
"""Script of the command ``python -m mmlinattn check-data``."""

import sys

from mmlinattn.cli.check_data import main

if __name__ == '__main__':
    sys.exit(main())
