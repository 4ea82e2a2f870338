# SPDX-License-Identifier: Apache-2.0
"""Python programs in processes of their own, without what each would pay for its imports: four
seconds of processor time. A server, which conftest.py forks when torch is loaded and has not run
yet, forks each of them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from typing import List, Optional

WIDTH = 16  # of a number in the news: two may come at once


class Process:
    """As subprocess.Popen, with pipes as standard input and output, and this process's stderr."""

    def __init__(self, requests: socket.socket, arguments: List[str], **environment: str) -> None:
        self.arguments, self.returncode = arguments, None
        theirs, ours = os.pipe()
        self.stdin = os.fdopen(ours, "w")
        ours, out = os.pipe()
        self.stdout = os.fdopen(ours)
        self._news, news = os.pipe()
        request = json.dumps([arguments, {**os.environ, **environment}]).encode()
        socket.send_fds(requests, [request], [theirs, out, 2, news])
        for end in (theirs, out, news):
            os.close(end)
        self.pid = int(os.read(self._news, WIDTH))

    def wait(self, timeout: Optional[float] = None) -> int:
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.arguments, timeout)
            self.returncode = int(os.read(self._news, WIDTH))
            os.close(self._news)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def output(self, timeout: float = 600) -> str:
        """The rest of its output, after its end."""
        limit = threading.Timer(timeout, self.kill)
        limit.start()
        self.stdin.close()
        with self.stdout:
            text = self.stdout.read()
        self.wait()
        limit.cancel()
        return text


class Server:
    """Starts processes until it is closed."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            self._requests.close()
            atexit._clear()
            try:
                serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def start(self, *arguments: object, **environment: str) -> Process:
        """Starts `python ARGUMENTS`: a file, or -c and a program."""
        return Process(self._requests, list(map(str, arguments)), **environment)

    def close(self) -> None:
        self._requests.close()
        os.waitpid(self._pid, 0)


def serve(requests: socket.socket) -> None:
    while True:
        request, ends, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not request:
            break
        if os.fork() == 0:
            requests.close()
            watch(*json.loads(request), *ends)
        for end in ends:
            os.close(end)


def watch(arguments, environment, theirs: int, out: int, errors: int, news: int) -> None:
    """Starts the process, and tells its number and how it ends."""
    pid = os.fork()
    if pid == 0:
        os.dup2(theirs, 0)
        os.dup2(out, 1)
        os.dup2(errors, 2)
    for end in (theirs, out, errors):
        os.close(end)
    if pid == 0:
        os.close(news)
        os.environ.clear()
        os.environ.update(environment)
        os._exit(run(arguments))
    os.write(news, b"%*d" % (WIDTH, pid))
    status = os.waitpid(pid, 0)[1]
    os.write(news, b"%*d" % (WIDTH, os.waitstatus_to_exitcode(status)))
    os._exit(0)


def run(arguments: List[str]) -> int:
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
    try:
        sys.argv = arguments
        if arguments[0] == "-c":
            exec(compile(arguments[1], "-c", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return status
