"""``torchrun --nproc_per_node N --max-restarts M script arguments``, without the imports.

Its processes come from the fork server of the tests, as this one does: this one has threads, which
a fork of it would not have.

elastic_agent.py N M ENDPOINT script arguments
"""

import os
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.programs import run_script


def main() -> None:
    os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'
    processes, restarts, endpoint, script, *arguments = sys.argv[1:]
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=int(processes), max_restarts=int(restarts),
        run_id='test', rdzv_backend='c10d', rdzv_endpoint=endpoint, start_method='forkserver',
        monitor_interval=0.1,
    )  # fmt: skip
    output = os.readlink('/proc/self/fd/1')
    elastic_launch(config, run_script)(script, arguments, dict(os.environ), output)


if __name__ == '__main__':
    main()
