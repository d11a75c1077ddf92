#!/usr/bin/env python
"""The command ``mmlinattn visualize key-weights``."""

import runpy
import sys

if __name__ == '__main__':
    sys.argv[:1] = ['mmlinattn', 'visualize', 'key-weights']
    runpy.run_module('mmlinattn', run_name='__main__')
