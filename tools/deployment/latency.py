#!/usr/bin/env python
"""Script of the command ``python -m mmlinattn latency``."""

import sys

from mmlinattn.cli.latency import main

if __name__ == '__main__':
    sys.exit(main())
