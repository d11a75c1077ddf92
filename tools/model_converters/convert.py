#!/usr/bin/env python
"""Script of the command ``python -m mmlinattn convert``."""

import sys

from mmlinattn.cli.convert import main

if __name__ == '__main__':
    sys.exit(main())
