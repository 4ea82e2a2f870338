# SPDX-License-Identifier: Apache-2.0
"""The team's default size follows affinity and the control group's quota of processor time."""

import json
import os
import subprocess
import sys

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 16 CPUs. */
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
  (void)pid;
  memset(set, 0, size);
  for (int cpu = 0; cpu < 16; cpu++) CPU_SET_S(cpu, size, set);
  return 0;
}

/* Control groups are read below $FAKE_ROOT. */
FILE *fopen(const char *path, const char *mode) {
  FILE *(*real)(const char *, const char *) =
      (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
  char moved[4096];
  const char *root = getenv("FAKE_ROOT");
  const int ours = strncmp(path, "/sys/fs/cgroup", 14) == 0 || strcmp(path, "/proc/self/cgroup") == 0;
  snprintf(moved, sizeof moved, "%s%s", root != NULL && ours ? root : "", path);
  return real(moved, mode);
}
"""

PROGRAM = """
import json, os, pathlib, sys
import torch, hocket

root = pathlib.Path(os.environ["FAKE_ROOT"])
(root / "proc/self").mkdir(parents=True)
job = root / "sys/fs/cgroup/outer/job"
job.mkdir(parents=True)
answers = []
for quota, outer, group in json.loads(sys.argv[1]):
    (root / "proc/self/cgroup").write_text(f"0::{group}\\n")
    (job / "cpu.max").write_text(quota + "\\n")
    (job.parent / "cpu.max").write_text(outer + "\\n")
    model = torch.nn.Linear(8, 8)
    opt = hocket.AdamW(model.parameters())
    opt.attach(model)
    model(torch.ones(1, 8)).sum().backward()
    opt.step()
    opt.synchronize()
    answers.append(opt.stats()["cpu_threads"])
print(json.dumps(answers))
"""

CASES = [
    # quota of the inner group, of the outer one, this process's group -> threads: the least of 16
    # and the quotas in CPUs, less one, at least 1
    ("max 100000", "max 100000", "/outer/job", 15),
    ("400000 100000", "max 100000", "/outer/job", 3),
    ("250000 100000", "max 100000", "/outer/job", 2),  # rounded up
    ("50000 100000", "max 100000", "/outer/job", 1),
    ("max 100000", "600000 100000", "/outer/job", 5),
    ("400000 100000", "200000 100000", "/outer/job", 1),
    ("400000 100000", "800000 100000", "/outer", 7),  # not in the inner group
    ("400000 100000", "800000 100000", "/", 15),
    ("6400000 100000", "max 100000", "/outer/job", 15),
]


@pytest.mark.full  # a process of its own: three seconds to import torch
def test_the_default_team_follows_the_quota_of_the_control_group(tmp_path):
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True, capture_output=True
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([case[:3] for case in CASES])],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "FAKE_ROOT": str(tmp_path / "root"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [case[3] for case in CASES]
