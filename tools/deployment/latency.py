#!/usr/bin/env python
"""The command ``mmlinattn latency``."""

import runpy
import sys

if __name__ == '__main__':
    sys.argv[:1] = ['mmlinattn', 'latency']
    runpy.run_module('mmlinattn', run_name='__main__')
