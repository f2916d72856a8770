"""Finds the processes that were started together, and connects each with process 0."""

import contextlib
import json
import os
import platform
import re
import socket
import struct
import time
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from moon_jax.errors import ExitCode, RunError, UsageError

COORDINATOR = 'MOON_JAX_COORDINATOR'  # host:port, of process 0
PROCESSES, PROCESS = 'MOON_JAX_PROCESSES', 'MOON_JAX_PROCESS'  # how many, which one
WAIT = 'MOON_JAX_WAIT'  # seconds for all processes to come
# Who starts processes -> where it says how many there are, and which one this is.
_STARTERS = (
  (PROCESSES, PROCESS),
  ('SLURM_STEP_NUM_TASKS', 'SLURM_PROCID'),
  ('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK'),
)
_MOST = 2**16
# A host that has lost its power says nothing: 10 + 4 * 5 seconds later that is an end.
_ALIVE = {'TCP_KEEPIDLE': 10, 'TCP_KEEPINTVL': 5, 'TCP_KEEPCNT': 4}
_ALIVE |= {'TCP_USER_TIMEOUT': 30_000}  # ms, of what was sent
# Seconds for a stranger at our port to say who he is, and between attempts to connect.
_HELLO, _AGAIN = 5.0, 0.2
_HEAD = struct.Struct('>cQ')  # of a message: its kind, its bytes
VALUE, PACKED, END = b'v', b'p', b'e'


class Place(NamedTuple):
  """Where a process stands among those of its run.

  Attributes:
    coordinator: (host, port) at which process 0 listens.
    count: how many there are, above 1.
    index: of this one, from 0.
    wait: seconds for all to come.
  """

  coordinator: tuple[str, int]
  count: int
  index: int
  wait: float


class Host(NamedTuple):
  """Where a process runs: its host's name, and the cores that it may use."""

  name: str
  cores: list[int]


def detect(environment: Mapping[str, str]) -> Place | None:
  """What the environment says about the processes of the run; None if this is alone.

  Raises:
    UsageError: it says half of it, or what cannot be.
  """

  def number(name, least, below, default=''):
    value = environment.get(name, default)
    if not (value.isdecimal() and least <= int(value) < below):
      raise UsageError(f'{name}={value!r} must be in [{least}, {below - 1}].')
    return int(value)

  names = next((pair for pair in _STARTERS if pair[0] in environment), None)
  count = number(names[0], 1, _MOST) if names else 1
  if count == 1:
    return None
  address = environment.get(COORDINATOR) or _first_of_slurm(environment)
  host, _, port = address.rpartition(':')
  if not host or not port.isdecimal():
    raise UsageError(f'{COORDINATOR}={address!r} must be host:port, of process 0.')
  at = host.strip('[]'), int(port)
  return Place(at, count, number(names[1], 0, count), number(WAIT, 1, _MOST, '300'))


def _first_of_slurm(environment):
  """'node07:21234' of 'node[07-09,12],login1'; '' if this is not SLURM."""
  first = re.match(r'([^,\[]+)(?:\[(\d+))?', environment.get('SLURM_STEP_NODELIST', ''))
  job = [environment.get(f'SLURM_{name}_ID', '') for name in ('JOB', 'STEP')]
  # Below the ports that systems give to whoever asks for any.
  port = 20000 + zlib.crc32('.'.join(job).encode()) % 10000
  return f'{first[1]}{first[2] or ""}:{port}' if first else ''


def send(peer: socket.socket, kind: bytes, data: Any) -> None:
  """Sends a message: bytes, or what JSON can hold."""
  if not isinstance(data, bytes | memoryview):
    data = json.dumps(data).encode()
  peer.sendall(_HEAD.pack(kind, len(data)))
  peer.sendall(data)


def receive(peer: socket.socket) -> tuple[bytes, bytearray]:
  """The next message: its kind, its bytes.

  Raises:
    OSError: the other side has ended.
  """
  kind, size = _HEAD.unpack(_exactly(peer, _HEAD.size))
  return kind, _exactly(peer, size)


def _exactly(peer, size):
  data, at = bytearray(size), 0
  while at < size:
    if not (read := peer.recv_into(memoryview(data)[at:])):
      raise ConnectionResetError
    at += read
  return data


def meet(place: Place) -> tuple[list[Host], dict[int, socket.socket]]:
  """Waits until all processes are there.

  Returns:
    Where each runs, and the connections: of process 0 to each other one, of the others
    to process 0.

  Raises:
    RunError: some did not come in time.
    UsageError: they do not fit together, or there is no place to meet.
  """
  cores = os.sched_getaffinity(0) if hasattr(os, 'sched_getaffinity') else ()
  mine = Host(platform.node(), sorted(cores))
  if place.index == 0:
    hosts, peers = _receive_all(place, mine)
  else:
    hosts, peers = _go_there(place, mine)
  for peer in peers.values():
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {'TCP_NODELAY': 1, **_ALIVE}.items():
      if hasattr(socket, name):  # not on every system
        peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
  return hosts, peers


def _receive_all(place, mine):
  hosts, peers = {0: mine}, {}
  end = time.monotonic() + place.wait
  with _listening(place) as server:
    while len(hosts) < place.count:
      server.settimeout(max(end - time.monotonic(), 0.001))
      try:
        peer, _ = server.accept()
      except TimeoutError:
        absent = [i for i in range(place.count) if i not in hosts]
        _refuse(peers.values(), RunError(_did_not_come(place, absent)))
      try:
        peer.settimeout(_HELLO)
        count, index, host = json.loads(receive(peer)[1])
        count, index, host = int(count), int(index), Host(*host)
      except (OSError, ValueError, TypeError, OverflowError, MemoryError):
        peer.close()  # no process of a run
        continue
      fault = f'it was told of {count} processes' if count != place.count else ''
      if index in hosts:
        fault = f'there is one already, on {hosts[index].name}'
      if fault:
        error = UsageError(f'Process {index} on {host.name}: {fault}.')
        _refuse([peer, *peers.values()], error)
      hosts[index], peers[index] = host, peer
  found = [hosts[index] for index in range(place.count)]
  for peer in peers.values():
    send(peer, VALUE, found)
  return found, peers


def _listening(place):
  host, port = place.coordinator
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  try:
    return socket.create_server(('', port), family=family, dualstack_ipv6=both)
  except OSError as error:
    raise UsageError(
      f'Process 0 cannot listen at port {port}: {error.strerror}. Give another one by '
      f'{COORDINATOR}={host}:PORT.'
    ) from None


def _refuse(peers, error):
  for peer in peers:
    with contextlib.suppress(OSError), peer:
      send(peer, END, [str(error), error.exit_code])
  raise error


def _did_not_come(place, absent):
  names, (host, port) = ', '.join(map(str, absent)), place.coordinator
  return (
    f'Of {place.count} processes {names} did not come to {host}:{port} within '
    f'{place.wait} s ({WAIT}).'
  )


def _go_there(place, mine):
  end = time.monotonic() + place.wait
  while True:
    try:
      # Process 0 may have begun to wait later.
      peer = socket.create_connection(place.coordinator, place.wait + _HELLO)
      send(peer, VALUE, [place.count, place.index, mine])
      kind, told = receive(peer)
      break
    except OSError:
      if time.monotonic() > end:
        raise RunError(_did_not_come(place, [0])) from None
      time.sleep(_AGAIN)
  if kind == VALUE:
    return [Host(*host) for host in json.loads(told)], {0: peer}
  peer.close()
  raise failure(*json.loads(told))


def failure(message: str, code: int) -> RunError:
  """The error of another process."""
  error = RunError(message)
  error.exit_code = ExitCode(code)
  return error
