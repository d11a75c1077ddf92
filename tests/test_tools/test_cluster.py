"""The files for schedulers: Slurm's script played through, the others beside their schemas."""

import copy
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest
import yaml
from torch.distributed.run import parse_args

from ..sizes import LONG
from .conftest import CONFIGS

# A form is a type, a set of strings, [form of each], or a dict: names and their forms, where
# '*' is any other name. A name that a form lacks is an error.
ANY = object
INTEGERS_OR_TEXT = (int, str)

# Fields of PyTorchJob v1 in the CustomResourceDefinition of Kubeflow's training operator 1.9 and in
# the checks of its webhook; of pods, those of Kubernetes' core/v1 that are used here.
CONTAINER = dict(
    name=str, image=str, imagePullPolicy={'Always', 'IfNotPresent', 'Never'}, workingDir=str,
    command=[str], args=[str], env=[dict(name=str, value=str, valueFrom=ANY)],
    resources=dict(limits={'*': INTEGERS_OR_TEXT}, requests={'*': INTEGERS_OR_TEXT}),
    volumeMounts=[dict(name=str, mountPath=str, readOnly=bool, subPath=str)],
)  # fmt: skip
VOLUME = dict(
    name=str,
    persistentVolumeClaim=dict(claimName=str, readOnly=bool),
    emptyDir=dict(medium=str, sizeLimit=str),
)
REPLICA = dict(
    replicas=int,
    restartPolicy={'Always', 'OnFailure', 'Never', 'ExitCode'},
    template=dict(
        metadata=ANY,
        spec=dict(
            containers=[CONTAINER], volumes=[VOLUME], terminationGracePeriodSeconds=int,
            nodeSelector={'*': str}, tolerations=[ANY], serviceAccountName=str,
        ),
    ),
)  # fmt: skip
PYTORCH_JOB = dict(
    apiVersion={'kubeflow.org/v1'},
    kind={'PyTorchJob'},
    metadata=dict(name=str, namespace=str, labels={'*': str}, annotations={'*': str}),
    spec=dict(
        runPolicy=dict(
            cleanPodPolicy={'All', 'Running', 'None'}, ttlSecondsAfterFinished=int,
            activeDeadlineSeconds=int, backoffLimit=int, schedulingPolicy=ANY, suspend=bool,
            managedBy=str,
        ),
        elasticPolicy=dict(
            minReplicas=int, maxReplicas=int, maxRestarts=int, metrics=[ANY], nProcPerNode=int,
            rdzvBackend={'c10d', 'etcd', 'etcd-v2'}, rdzvConf=[dict(key=str, value=str)],
            rdzvHost=str, rdzvId=str, rdzvPort=int, standalone=bool,
        ),
        nprocPerNode=str,
        pytorchReplicaSpecs=dict(Master=REPLICA, Worker=REPLICA),
    ),
)  # fmt: skip

# Fields of a task in SkyPilot 0.14 (sky/utils/schemas.py, and its storage modes).
SKYPILOT = dict(
    name=str, workdir=str, num_nodes=int, setup=str, run=str, envs={'*': str},
    secrets={'*': str}, config=ANY, volumes=ANY, service=ANY,
    resources=dict(
        infra=str, accelerators=(str, dict), cpus=INTEGERS_OR_TEXT, memory=INTEGERS_OR_TEXT,
        instance_type=str, use_spot=bool, disk_size=INTEGERS_OR_TEXT, disk_tier=str,
        network_tier=str, image_id=str, ports=ANY, labels={'*': str}, any_of=[ANY], ordered=[ANY],
        max_hourly_cost=(int, float), autostop=ANY, priority=int,
        job_recovery=dict(strategy=str, max_restarts_on_errors=int, recover_on_exit_codes=ANY),
    ),
    file_mounts={'*': dict(
        name=str, source=(str, list), store=str, persistent=bool, config=ANY,
        mode={'MOUNT', 'COPY', 'MOUNT_CACHED'},
    )},
)  # fmt: skip


def misfits(value: Any, form: Any, place: str = '') -> Iterator[str]:
    """Where a file's content is not of that form."""
    if isinstance(form, dict) and isinstance(value, dict):
        for name, inner in value.items():
            if name not in form and '*' not in form:
                yield f'{place}.{name} is unknown'
            else:
                yield from misfits(inner, form.get(name, form.get('*')), f'{place}.{name}')
    elif isinstance(form, list) and isinstance(value, list):
        for i, inner in enumerate(value):
            yield from misfits(inner, form[0], f'{place}[{i}]')
    elif isinstance(form, set):
        if value not in form:
            yield f'{place} is {value!r}'
    elif (
        isinstance(form, (dict, list))
        or not isinstance(value, form)
        or (isinstance(value, bool) and form not in (bool, ANY))
    ):
        yield f'{place} is {value!r}'


def load(root, name: str) -> dict:
    return yaml.safe_load((root / 'tools/cluster' / name).read_text())


@pytest.fixture
def job(root) -> dict:
    return load(root, 'pytorchjob.yaml')


def test_a_pytorch_job_has_the_fields_of_its_definition(root, job):
    assert [*misfits(job, PYTORCH_JOB)] == []
    # What the operator's webhook asks for.
    assert re.fullmatch('[a-z]([-a-z0-9]{0,61}[a-z0-9])?', job['metadata']['name'])
    elastic, worker = (job['spec'][k] for k in ('elasticPolicy', 'pytorchReplicaSpecs'))
    worker = worker['Worker']
    assert elastic['minReplicas'] <= worker['replicas'] <= elastic['maxReplicas']
    pod = worker['template']['spec']
    (container,) = pod['containers']
    assert container['name'] == 'pytorch' and container['image']
    mounted = {mount['name'] for mount in container['volumeMounts']}
    assert mounted == {volume['name'] for volume in pod['volumes']}
    assert int(job['spec']['nprocPerNode']) == container['resources']['limits']['nvidia.com/gpu']
    # torchrun ends its processes 30 s after it was told to.
    assert pod['terminationGracePeriodSeconds'] > 30


def test_the_pods_of_a_pytorch_job_start_an_elastic_training(root, job, monkeypatch):
    (container,) = job['spec']['pytorchReplicaSpecs']['Worker']['template']['spec']['containers']
    command = container['command']
    assert command[:3] == ['python', '-m', 'torch.distributed.run']
    # As the operator sets it, from elasticPolicy and nprocPerNode.
    monkeypatch.setenv('PET_NNODES', '1:4')
    monkeypatch.setenv('PET_MAX_RESTARTS', str(job['spec']['elasticPolicy']['maxRestarts']))
    args = parse_args(command[3:])
    assert args.nnodes == '1:4' and args.max_restarts == 20
    script, config, *options = [args.training_script, *args.training_script_args]
    assert (root / script).is_file() and (root / config).is_file()
    assert '--launcher=pytorch' in options and '--resume' in options
    assert dict(name='TORCH_DISABLE_SHARE_RDZV_TCP_STORE', value='1') in container['env']


@pytest.mark.parametrize(
    'path, value',
    [
        (('spec', 'elasticPolicy', 'minReplica'), 1),
        (('spec', 'elasticPolicy', 'maxRestarts'), '3'),
        (('spec', 'elasticPolicy', 'maxRestarts'), True),
        (('spec', 'nprocPerNode'), 8),
        (('spec', 'pytorchReplicaSpecs', 'Workers'), {}),
        (('spec', 'pytorchReplicaSpecs', 'Worker', 'restartPolicy'), 'Sometimes'),
        (('spec', 'pytorchReplicaSpecs', 'Worker'), []),
        (('apiVersion',), 'kubeflow.org/v2'),
    ],
)
def test_a_mistake_is_seen(job, path, value):
    wrong = copy.deepcopy(job)
    owner = wrong
    for name in path[:-1]:
        owner = owner[name]
    owner[path[-1]] = value
    assert len([*misfits(wrong, PYTORCH_JOB)]) == 1


def test_a_skypilot_task_has_the_fields_of_its_schema(root):
    task = load(root, 'skypilot.yaml')
    assert [*misfits(task, SKYPILOT)] == []
    assert (root / task['envs']['CONFIG']).is_file()
    for script in (task['setup'], task['run']):
        subprocess.run(['bash', '-n'], input=script, text=True, check=True)
    task['resources']['job_recovery']['max_restarts'] = 3
    assert [*misfits(task, SKYPILOT)] == ['.resources.job_recovery.max_restarts is unknown']


def test_a_skypilot_task_beside_the_schema_of_the_package(root):
    schemas = pytest.importorskip(
        'sky.utils.schemas', reason='pip install skypilot, for its schema'
    )
    jsonschema = pytest.importorskip('jsonschema')
    task = load(root, 'skypilot.yaml')
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task['resources'], schemas.get_resources_schema())
    for mount in task['file_mounts'].values():
        jsonschema.validate(mount, schemas.get_storage_schema())


def test_a_skypilot_task_starts_the_training_on_each_machine(root, tmp_path):
    """With the variables that SkyPilot sets, and a launcher that says what it was given."""
    launcher = tmp_path / 'tools/dist_train.sh'
    launcher.parent.mkdir()
    launcher.write_text('#!/bin/bash\necho "$NNODES|$MASTER_ADDR|$RUN_ID|$*"\n')
    launcher.chmod(0o755)
    task = load(root, 'skypilot.yaml')
    given = dict(
        SKYPILOT_NODE_IPS='10.0.0.1\n10.0.0.2', SKYPILOT_NUM_NODES='2', SKYPILOT_TASK_ID='t-1',
        SKYPILOT_NUM_GPUS_PER_NODE='8', **dict(task['envs'], OPTIONS='--amp'),
    )  # fmt: skip
    done = subprocess.run(
        ['bash', '-c', task['run']], cwd=tmp_path, env={**os.environ, **given},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    name = Path(task['envs']['CONFIG']).stem
    assert done.stdout.strip() == (
        f'2|10.0.0.1|t-1|{task["envs"]["CONFIG"]} 8 --resume --work-dir /work_dirs/{name} --amp'
    )


# Slurm's commands, as far as the script needs them, and a training: it ends when it is told to,
# with its state saved, and the one after it goes on from there.
COMMANDS = dict(
    srun='echo "$*" >> asked; while [[ $1 == --* ]]; do shift; done; echo $$ > srun.pid; exec "$@"',
    scancel='[ "$*" = "--signal=TERM 7" ] && kill -TERM "$(cat srun.pid)"',
    scontrol='[ "$1" = requeue ] && echo "$2" >> requeued || echo node1',
    training="""echo "$NNODES|$MASTER_ADDR|$RUN_ID|$MAX_RESTARTS|$*" >> started
if [ -n "${FAILS:-}" ]; then exit 3; fi
if [ -e saved ]; then echo 'goes on'; exit 0; fi
trap 'touch saved; exit 1' TERM
echo 'Epoch(train) [1]'
while true; do sleep 0.02; done""",
)


@pytest.fixture
def slurm(root, tmp_path):
    """Runs the script as Slurm would, in a copy of tools: slurm(*arguments, **environment)."""
    for name, text in COMMANDS.items():
        path = tmp_path / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/bash\n{text}\n')
        path.chmod(0o755)
    (tmp_path / 'tools').symlink_to(root / 'tools')

    def start(*arguments, **environment) -> subprocess.Popen:
        environment = dict(
            os.environ, PATH=f'{tmp_path}/bin:{os.environ["PATH"]}', SLURM_JOB_ID='7',
            SLURM_NNODES='1', SLURM_JOB_NODELIST='node[1]', SLURM_GPUS_ON_NODE='2',
            **{'PYTHON': str(tmp_path / 'bin/training'), **environment},
        )  # fmt: skip
        return subprocess.Popen(
            ['bash', root / 'tools/cluster/slurm.sh', *map(str, arguments)], cwd=tmp_path,
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    return start


def told_in_training(job: subprocess.Popen) -> str:
    """What the batch script prints that gets Slurm's signal while the training runs."""
    lines = []
    for line in job.stdout:
        lines.append(line)
        if 'Epoch(train)' in line:
            break
    job.send_signal(signal.SIGUSR1)
    return ''.join(lines) + job.communicate(timeout=120)[0]


def test_slurm_queues_a_job_again_before_its_time_is_over(slurm, tmp_path):
    job = slurm('config.py', 'work', '--amp', SLURM_CPUS_PER_TASK='64')
    printed = told_in_training(job)
    assert job.returncode == 0 and 'job 7 queues again and goes on from work' in printed, printed
    assert (tmp_path / 'requeued').read_text() == '7\n'
    job = slurm('config.py', 'work', '--amp', SLURM_RESTART_COUNT='1')
    assert 'goes on' in job.communicate(timeout=60)[0] and job.returncode == 0
    assert (tmp_path / 'requeued').read_text() == '7\n'
    asked = (tmp_path / 'asked').read_text().splitlines()
    assert [re.search(r'--cpus-per-task=(\d+) ', line)[1] for line in asked] == ['64', '1']
    first, second = (tmp_path / 'started').read_text().splitlines()
    assert first.startswith('1|node1|7.0|3|-m torch.distributed.run --standalone')
    assert '--nproc-per-node=2 --max-restarts=3' in first
    assert first.endswith('config.py --launcher pytorch --resume --work-dir work --amp')
    assert second == first.replace('|7.0|', '|7.1|')


def test_slurm_lets_a_job_fail_whose_training_fails(slurm, tmp_path):
    job = slurm('config.py', 'work', FAILS='1')
    job.communicate(timeout=60)
    assert job.returncode == 3 and not (tmp_path / 'requeued').exists()


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason='torchrun imports the frameworks twice; make test-long does')
def test_slurm_goes_on_with_a_real_training(root, options, slurm, tmp_path):
    arguments = [root / CONFIGS['cls'], 'work', '--cfg-options', *options('cls', 5, batch=2)]
    job = slurm(*arguments, GPUS='1', PYTHON=sys.executable)
    printed = told_in_training(job)
    assert job.returncode == 0 and 'queues again' in printed, printed[-3000:]
    assert (tmp_path / 'work/interrupted.pth').exists()
    job = slurm(*arguments, GPUS='1', PYTHON=sys.executable, SLURM_RESTART_COUNT='1')
    printed = job.communicate(timeout=300)[0]
    assert job.returncode == 0 and 'resumed epoch: ' in printed, printed[-3000:]
    assert (tmp_path / 'requeued').read_text() == '7\n'


def test_slurm_is_asked_for_the_signal_and_the_requeue(root):
    text = (root / 'tools/cluster/slurm.sh').read_text()
    asked = re.findall('^#SBATCH --([a-z-]+)(?:=(.*))?$', text, re.M)
    assert text.count('#SBATCH') == len(asked)
    asked = dict(asked)
    # Without append the output of a job that has queued again would replace that before.
    assert asked['open-mode'] == 'append' and 'requeue' in asked
    who, seconds = re.fullmatch(r'(B:USR1)@(\d+)', asked['signal']).groups()
    assert int(seconds) >= 60 and f'trap stop {who[2:]}' in text
    assert asked['ntasks-per-node'] == '1'  # torchrun starts the processes of a machine
