#!/usr/bin/env python
"""The command ``mmlinattn visualize patch-embedding``."""

import runpy
import sys

if __name__ == '__main__':
    sys.argv[:1] = ['mmlinattn', 'visualize', 'patch-embedding']
    runpy.run_module('mmlinattn', run_name='__main__')
