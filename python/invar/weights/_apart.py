"""Work in a process that ends with it. What the work connects to is let go then."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from typing import NoReturn

import torch

from ._frames import Refused, end_with

_threads = torch.get_num_threads()


def prepare() -> None:
    """This process computes on one thread: threads of OpenMP do not survive a fork, and a child would wait for them."""
    torch.set_num_threads(1)


def _work(work: Callable[[Callable[[], None]], None], fd: int) -> NoReturn:
    """A line for each sign of progress, and one with the outcome."""
    end_with(fd)
    torch.set_num_threads(_threads)
    answer = {"status": "ok", "message": "", "last": False}
    try:
        work(lambda: os.write(fd, b"\n") and None)
    except Refused as error:
        answer = {"status": error.status, "message": str(error), "last": error.last}
    except MemoryError:
        answer |= {"status": "no_memory", "message": "no memory for the tensors"}
    except BaseException as error:
        answer |= {"status": "io", "message": f"{type(error).__name__}: {error}"}
    gc.collect()  # an error's frames may hold shared memory, whose references are given back
    os.write(fd, json.dumps(answer).encode() + b"\n")
    os._exit(0)


def run(work: Callable[[Callable[[], None]], None], working: Callable[[], None]) -> None:
    """Calls work(working) there. What it raises is raised here, as Refused."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _work(work, write)
    os.close(write)
    answer = {"status": "io", "message": "", "last": False}
    try:
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                if line == b"\n":
                    working()
                else:
                    answer = json.loads(line)
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if answer["status"] != "ok":
        message = answer["message"] or f"the process that reads shared memory ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        raise Refused(str(answer["status"]), str(message), bool(answer["last"]))
