#!/usr/bin/env python
"""The command ``mmlinattn to-shards``."""

import runpy
import sys

if __name__ == '__main__':
    sys.argv[:1] = ['mmlinattn', 'to-shards']
    runpy.run_module('mmlinattn', run_name='__main__')
