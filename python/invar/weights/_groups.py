"""Process groups of torch.distributed from which a trainer broadcasts weights. Each of the server's ranks is a process of its own, so that a
group that hangs or fails ends without the others."""

# mypy: disable-error-code="attr-defined,arg-type"
from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch.distributed import distributed_c10d as c10d

from ._frames import Refused, end_with
from ._sets import Entry, Set

BACKENDS = ("nccl", "gloo")
GRACE_S = 3  # after torch's own timeout, whose words say more
GROUPS_MAX, NAME_BYTES_MAX = 16, 200


class Options(NamedTuple):
    address: str
    port: int
    name: str
    backend: str
    first: int  # rank
    world: int
    ranks: int  # of the server
    seconds: float


# ---- one rank, in a process of its own


def _connect(o: Options, index: int) -> Any:
    """What slime, verl and OpenRLHF call init_process_group: a group next to a default one."""
    if o.backend == "nccl":
        if not torch.cuda.is_available():
            raise Refused("unsupported", "backend nccl: torch sees no GPU")
        torch.cuda.set_device(index)
    limit, host = timedelta(seconds=o.seconds), f"[{o.address}]" if ":" in o.address else o.address
    store, rank, world = next(c10d.rendezvous(f"tcp://{host}:{o.port}", o.first + index, o.world, timeout=limit))
    store.set_timeout(limit)
    group, _ = c10d._new_process_group_helper(
        world, rank, [], c10d.Backend(o.backend), c10d.PrefixStore(o.name, store), group_name=o.name, timeout=limit
    )
    c10d._world.pg_group_ranks[group] = {i: i for i in range(world)}
    return group


def _receive(pipe: Connection, o: Options, index: int, group: Any, entries: Sequence[Entry], path: str | None) -> None:
    device = f"cuda:{index}" if o.backend == "nccl" else "cpu"
    with Set(path, entries) if path else contextlib.nullcontext() as out:
        for i, entry in enumerate(entries):
            to = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device=device)
            torch.distributed.broadcast(to, 0, group=group)
            data = to.reshape(-1).view(torch.uint8)
            if out:
                out.put(i, data)
            else:
                data.cpu()  # waits for it
            pipe.send(("working", ""))


def _rank(pipe: Connection, o: Options, index: int) -> None:
    end_with(pipe.fileno())
    try:
        pipe.send(("working", ""))
        group = _connect(o, index)
        pipe.send(("ok", ""))
        while True:
            _receive(pipe, o, index, group, *pipe.recv())
            pipe.send(("ok", ""))
    except Refused as error:
        pipe.send((error.status, str(error)))
    except Exception as error:
        pipe.send(("io", f"{o.backend.upper()}: {type(error).__name__}: {error}"))
    os._exit(1)  # a group's own end would wait for ranks that are gone


# ---- all of them, seen by the server's process


class Group:
    def __init__(self, o: Options, working: Callable[[], None]) -> None:
        self.o, self._working, self.broken = o, working, False
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for i in range(o.ranks):
            own, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(theirs, o, i), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(own)
            self._processes.append(process)
        try:
            self._await("join")
        except Refused:
            self.close()
            raise

    def _await(self, what: str) -> None:
        """Until every rank has said that it is done; a rank that says nothing for the timeout is an error."""
        left = dict(enumerate(self._pipes))
        deadline = time.monotonic() + self.o.seconds + GRACE_S
        while left:
            ready = wait(list(left.values()), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Refused("io", f"group {self.o.name}: {what}: {self.o.world} ranks did not come together within {self.o.seconds:g} s")
            for i in [i for i, pipe in left.items() if pipe in ready]:
                try:
                    status, text = left[i].recv()
                except EOFError:
                    self._processes[i].join()
                    raise Refused("io", f"group {self.o.name}: {what}: rank {self.o.first + i} ended ({self._processes[i].exitcode})") from None
                if status == "ok":
                    del left[i]
                elif status != "working":
                    raise Refused(status, f"group {self.o.name}: {text}")
                deadline = time.monotonic() + self.o.seconds + GRACE_S
                self._working()

    def receive(self, entries: Sequence[Entry], path: str) -> None:
        """The first rank writes them."""
        if self.broken:
            raise Refused("io", f"group {self.o.name}: an earlier broadcast failed: destroy it and make another")
        try:
            for i, pipe in enumerate(self._pipes):
                pipe.send((entries, path if i == 0 else None))
            self._await("broadcast")
        except (Refused, OSError) as error:
            self.close()
            raise error if isinstance(error, Refused) else Refused("io", f"group {self.o.name}: a rank ended: {error}") from None

    def close(self) -> None:
        self.broken = True
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


class Groups:
    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def join(self, o: Options, working: Callable[[], None]) -> None:
        if not 0 < len(o.name.encode()) <= NAME_BYTES_MAX:
            raise Refused("invalid", f"group_name: wanted 1 to {NAME_BYTES_MAX} bytes, found {len(o.name.encode())}")
        if o.backend not in BACKENDS:
            raise Refused("unsupported", f'backend: wanted "nccl" or "gloo", found "{o.backend[:40]}"')
        if o.first < 1 or o.first + o.ranks > o.world:
            raise Refused(
                "invalid",
                f"rank_offset: wanted room for the {o.ranks} ranks of this server among ranks 1 to world_size - 1, found {o.first} of {o.world}",
            )
        if o.name in self._groups:
            raise Refused("invalid", f"group_name: {o.name} is in use: destroy it first")
        if len(self._groups) >= GROUPS_MAX:
            raise Refused("limit", f"group_name: there are {GROUPS_MAX} groups already")
        self._groups[o.name] = Group(o, working)

    def find(self, name: str) -> Group:
        if name not in self._groups:
            raise Refused("invalid", f"group_name: there is no group {name}")
        return self._groups[name]

    def leave(self, name: str) -> None:
        self.find(name).close()
        del self._groups[name]
