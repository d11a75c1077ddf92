"""``torchrun --nproc_per_node N --max-restarts M script arguments``; its processes are forked from
this one, and need not import the frameworks again.

elastic_agent.py N M ENDPOINT script arguments
"""

import os
import runpy
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def entrypoint(script: str, *arguments: str) -> None:
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name='__main__')


def main() -> None:
    os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'
    processes, restarts, endpoint, script, *arguments = sys.argv[1:]
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=int(processes), max_restarts=int(restarts),
        run_id='test', rdzv_backend='c10d', rdzv_endpoint=endpoint, start_method='fork',
        monitor_interval=0.1,
    )  # fmt: skip
    elastic_launch(config, entrypoint)(script, *arguments)


if __name__ == '__main__':
    main()
