"""Which processes belong together, and what they share."""

import pytest

from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.platform import hosts, launchers
from moon_jax.platform.launchers import LAUNCHERS, ProcessGroup

BY_HAND, OPEN_MPI, SLURM = LAUNCHERS
HAND = {
  'MOON_JAX_COORDINATOR': 'node1:29400',
  'MOON_JAX_PROCESSES': '3',
  'MOON_JAX_PROCESS': '2',
}
HERE = HAND | {'MOON_JAX_COORDINATOR': 'localhost:7', 'MOON_JAX_WAIT': '20'}
STEP = {
  'SLURM_STEP_NODELIST': 'node[1-3]',
  'SLURM_STEP_NUM_TASKS': '8',
  'SLURM_PROCID': '5',
  'SLURM_STEP_TASKS_PER_NODE': '3(x2),2',
  'SLURM_NODEID': '1',
  'SLURM_LOCALID': '2',
}
MPI = {
  'OMPI_MCA_orte_hnp_uri': '4096.0;tcp://10.96.0.1:34911',
  'OMPI_COMM_WORLD_SIZE': '4',
  'OMPI_COMM_WORLD_RANK': '3',
  'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
  'OMPI_COMM_WORLD_LOCAL_RANK': '1',
}


def group(launcher, coordinator=None, *, count=8, index=5, **fields):
  """The processes that a launcher has started."""
  return ProcessGroup(
    launcher.name, launcher.method, coordinator, count, index, **fields
  )


@pytest.mark.parametrize(
  ('environment', 'expected'),
  [
    ({}, None),
    (HAND | {'MOON_JAX_PROCESSES': '1'}, None),
    (STEP | {'SLURM_STEP_NUM_TASKS': '1'}, None),
    # It is one of several processes that do not work together.
    (STEP | {'MOON_JAX_PROCESSES': '1'}, None),
    # It is the batch script, before its `srun`.
    ({'SLURM_JOB_ID': '17', 'SLURM_NTASKS': '8', 'SLURM_PROCID': '0'}, None),
    (HAND, group(BY_HAND, 'node1:29400', count=3, index=2)),
    (
      HERE,
      group(
        BY_HAND,
        'localhost:7',
        count=3,
        index=2,
        count_on_host=3,
        index_on_host=2,
        wait_seconds=20,
      ),
    ),
    (STEP, group(SLURM, count=8, index=5, count_on_host=3, index_on_host=2)),
    (
      STEP | {'SLURM_NODEID': '2'},
      group(SLURM, count=8, index=5, count_on_host=2, index_on_host=2),
    ),
    (MPI, group(OPEN_MPI, count=4, index=3, count_on_host=2, index_on_host=1)),
    # By `mpirun` in an interactive step, and on another node of a job.
    (
      STEP | {'SLURM_STEP_NUM_TASKS': '1'} | MPI,
      group(OPEN_MPI, count=4, index=3, count_on_host=2, index_on_host=1),
    ),
    (STEP | MPI, group(OPEN_MPI, count=4, index=3, count_on_host=2, index_on_host=1)),
    (
      MPI | {'MOON_JAX_COORDINATOR': '[fe80::1]:65535'},
      group(
        OPEN_MPI,
        '[fe80::1]:65535',
        count=4,
        index=3,
        count_on_host=2,
        index_on_host=1,
      ),
    ),
  ],
)
def test_which_process_this_is(environment, expected):
  assert launchers.detect(environment) == expected


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('COORDINATOR', ''),
    ('COORDINATOR', 'node1'),
    ('COORDINATOR', ':29400'),
    ('COORDINATOR', 'a..b:29400'),
    ('COORDINATOR', 'node1:65536'),
    ('COORDINATOR', 'node1:0'),
    ('PROCESS', '3'),
    ('PROCESS', '-1'),
    ('PROCESS', ''),
    ('PROCESSES', 'two'),
    ('WAIT', '0'),
  ],
)
def test_words_that_cannot_be_meant_are_refused(name, value):
  name = f'MOON_JAX_{name}'
  with pytest.raises(UsageError, match=f'^{name}={value!r} must be ') as refused:
    launchers.detect(HAND | {name: value})
  assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
  ('environment', 'missing'),
  [(HAND, 'MOON_JAX_COORDINATOR'), (MPI, 'OMPI_MCA_orte_hnp_uri')],
)
def test_where_process_0_is_has_to_be_known(environment, missing):
  del (environment := dict(environment))[missing]
  with pytest.raises(UsageError, match="MOON_JAX_COORDINATOR='' must be host:port"):
    launchers.detect(environment)


# --- what processes of a host share ---------------------------------------------------

NODE = {'SLURM_GPUS_ON_NODE': '4'}


@pytest.mark.parametrize(
  ('count_on_host', 'num_visible', 'environment', 'gpus'),
  [
    (1, 4, NODE, []),  # one process for each node: all
    (4, 4, NODE, [2]),  # one for each GPU
    (2, 4, NODE, [2, 3]),
    (8, 4, NODE, []),  # more processes than GPUs: JAX reports it
    (3, 0, {}, []),
    (4, 4, {}, [2]),
    # The launcher gave each process its own GPU.
    (4, 1, NODE, []),
    (2, 2, NODE, []),
    (1, 1, {'CUDA_VISIBLE_DEVICES': '2'}, []),
    (4, 4, {'CUDA_VISIBLE_DEVICES': '0,1,2,3'}, []),
  ],
)
def test_processes_of_a_host_share_its_gpus(
  monkeypatch, count_on_host, num_visible, environment, gpus
):
  for name in ('CUDA_VISIBLE_DEVICES', *NODE):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  processes = group(
    SLURM, count_on_host=count_on_host, index_on_host=min(2, count_on_host - 1)
  )
  assert launchers.own_gpus(processes, num_visible) == gpus


@pytest.mark.parametrize(
  ('launcher', 'cores', 'sharing'),
  [
    (SLURM, 16, 4),  # all cores of the job on the node
    (SLURM, 4, 1),  # each process is bound to its own cores
    (BY_HAND, 4, 4),  # no process is bound to cores
  ],
)
def test_processes_share_cores_that_are_nobodys_own(
  monkeypatch, launcher, cores, sharing
):
  assert hosts.sharing_cores(cores) == 1
  monkeypatch.setenv('SLURM_CPUS_ON_NODE', '16')
  monkeypatch.setattr(hosts, '_group', group(launcher, count_on_host=4))
  assert hosts.sharing_cores(cores) == sharing


def test_an_error_of_which_all_know_is_told_once(monkeypatch):
  """Otherwise the other processes, which have gone on, would be waited for."""
  errors_sent = []

  def gather(value, error):
    errors_sent.append(str(error))
    raise hosts._error_of_process(1, 'no data', ExitCode.USAGE)

  monkeypatch.setattr(hosts, '_names', ['a', 'b'])
  monkeypatch.setattr(hosts, 'gather', gather)
  with (
    pytest.raises(RunError, match='Process 1 on b: no data'),
    hosts.failing_together(),
  ):
    hosts.decided_by_first(lambda: 0)
  assert errors_sent == ['None']
