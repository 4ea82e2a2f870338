#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# libhocket from Python through ctypes: a step against AdamW in plain Python, state, checkpoints and
# error messages.
set -euo pipefail
hocket=$1
library=$(dirname "$hocket")/libhocket.so
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here"

cat >drive.py <<'EOF'
import ctypes
import json
import math
import random
import struct
import sys

lib = ctypes.CDLL(sys.argv[1])
i32, i64, size = ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
f64, ptr, text = ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p
BF16, FP16, FP32 = range(3)
P, M, V = range(3)
AGAIN = 4


class Group(ctypes.Structure):
    _fields_ = [(k, f64) for k in ("lr", "beta1", "beta2", "eps", "weight_decay")]


class Tensor(ctypes.Structure):
    _fields_ = [("name", text), ("numel", i64), ("block", i32), ("group", i32),
                ("weight_type", i32), ("grad_type", i32), ("weight", ptr)]


class Options(ctypes.Structure):
    _fields_ = [("backend", text), ("device", i32), ("overlap", i32), ("cpu_threads", i32),
                ("pin_threads", i32), ("first_core", i32), ("host_memory", i64),
                ("gpu_memory", i64), ("clip", i32),
                ("state", ctypes.c_char_p), ("seed", ctypes.c_uint64)]


class Gradient(ctypes.Structure):
    _fields_ = [("tensor", i64), ("data", ptr)]


class StepOptions(ctypes.Structure):
    _fields_ = [("max_norm", f64), ("loss_scale", f64), ("sum_of_squares", f64), ("wait", i32)]


class Info(ctypes.Structure):
    _fields_ = [("step", i64), ("skipped", i32), ("nonfinite", i64), ("tensors", i64),
                ("grad_norm", f64), ("grad_scale", f64), ("ahead", i64)]


for name, result, arguments in (
        ("version", text, []), ("abi", i32, []), ("step_number", i64, [ptr]),
        ("report", i32, [ptr, ptr, text]), ("free", None, [ptr]), ("destroy", None, [ptr]),
        ("create", i32, [text, ptr, size, ptr, size, ptr, ptr, text]),
        ("masters", i32, [ptr, i64, ptr, text]),
        ("wait_weights", i32, [ptr, i32, ptr, i32, text]), ("drain", i32, [ptr, i32, text]),
        ("gradients", i32, [ptr, ptr, size, ptr, text]), ("discard", i32, [ptr, i64, text]),
        ("sum_of_squares", i32, [ptr, i64, ptr, ptr, text]),
        ("step", i32, [ptr, ptr, ptr, ptr, text]),
        ("read", i32, [ptr, i32, size, i64, i64, ptr, text]),
        ("weights_from_masters", i32, [ptr, i64, ptr, text]),
        ("save", i32, [ptr, text, text]), ("load", i32, [ptr, text, text]),
        ("checksum", i32, [ptr, text, text])):
    function = getattr(lib, "hocket_" + name)
    function.restype, function.argtypes = result, arguments

message = ctypes.create_string_buffer(1024)


def must(status):
    assert status == 0, (status, message.value)
    assert message.value == b""


def refused(status, expected, *words):
    assert status == expected, (status, message.value)
    for word in words:
        assert word in message.value.decode(), (word, message.value)


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def widened(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def close(got, wanted):
    # The engine rounds to fp32 after each operation, this to fp64.
    return abs(got - wanted) <= 1e-5 * abs(wanted) + 1e-12


class Model:
    """One bf16 and one fp32 tensor, a block each."""
    def __init__(self, groups, overlap, backend=b"host", device=0, plan=None):
        random.seed(7)
        self.n = (3001, 777)
        self.weights = ((ctypes.c_uint16 * 3001)(*[bf16(random.uniform(-1, 1))
                                                   for _ in range(3001)]),
                        (ctypes.c_float * 777)(*[random.uniform(-1, 1) for _ in range(777)]))
        self.start = ([widened(w) for w in self.weights[0]], list(self.weights[1]))
        tensors = (Tensor * 2)(*[Tensor(b"tensor", self.n[i], i, i, (BF16, FP32)[i],
                                        (BF16, FP32)[i], ctypes.addressof(self.weights[i]))
                                 for i in range(2)])
        options = Options(backend=backend, device=device, overlap=overlap, cpu_threads=1)
        self.engine = ptr()
        self.status = lib.hocket_create(plan, tensors, 2, (Group * 2)(*groups), 2,
                                        ctypes.byref(options), ctypes.byref(self.engine), message)
        if self.status == 0:
            must(lib.hocket_masters(self.engine, -1, None, message))

    def hand_over(self, gradients):
        gradient_list = (Gradient * 2)(*[Gradient(i, ctypes.addressof(gradients[i]))
                                         for i in (1, 0)])
        must(lib.hocket_gradients(self.engine, gradient_list, 2, None, message))

    def state(self, part, tensor):
        data = (ctypes.c_float * self.n[tensor])()
        must(lib.hocket_read(self.engine, part, tensor, 0, self.n[tensor], data, message))
        return list(data)

    def checksum(self):
        hexadecimal = ctypes.create_string_buffer(33)
        must(lib.hocket_checksum(self.engine, hexadecimal, message))
        assert len(hexadecimal.value) == 32
        return hexadecimal.value


assert lib.hocket_version().count(b".") == 2 and lib.hocket_abi() == 10
hyper = (Group(1e-2, 0.9, 0.999, 1e-8, 0.1), Group(3e-3, 0.8, 0.95, 1e-6, 0.0))
engines = [Model(hyper, overlap) for overlap in (1, 2, 3)]
first = engines[0]
gradients = ((ctypes.c_uint16 * 3001)(*[bf16(random.gauss(0, 0.01)) for _ in range(3001)]),
             (ctypes.c_float * 777)(*[random.gauss(0, 0.01) for _ in range(777)]))
values = ([widened(g) for g in gradients[0]], list(gradients[1]))
square = math.fsum(g * g for part in values for g in part)

# One step of AdamW as torch.optim.AdamW has it.
scale, clip = 256.0, 1e-3
norm = math.sqrt(square) / scale
factor = min(1.0, clip / (norm + 1e-6)) / scale
assert factor * scale < 1
for model in engines:
    squares, bad, info = f64(), i64(), Info()
    model.hand_over(gradients)
    must(lib.hocket_sum_of_squares(model.engine, -1, ctypes.byref(squares), ctypes.byref(bad),
                                   message))
    assert squares.value == square and bad.value == 0
    must(lib.hocket_step(model.engine, ctypes.byref(StepOptions(max_norm=clip, loss_scale=scale)),
                         ctypes.byref(info), None, message))
    assert info.step == 1 and info.tensors == 2 and not info.skipped and info.nonfinite == 0
    assert close(info.grad_norm, norm) and close(info.grad_scale, factor)
    while (status := lib.hocket_wait_weights(model.engine, -1, None, 1, message)) == AGAIN:
        assert message.value
    must(status)
    for t in range(2):
        h = hyper[t]
        p, m, v = (model.state(part, t) for part in (P, M, V))
        for i, value in enumerate(values[t]):
            g = value * factor
            m1, v1 = (1 - h.beta1) * g, (1 - h.beta2) * g * g
            update = h.lr * (m1 / (1 - h.beta1)) / (math.sqrt(v1 / (1 - h.beta2)) + h.eps)
            wanted = model.start[t][i] * (1 - h.lr * h.weight_decay) - update
            assert close(m[i], m1) and close(v[i], v1), (i, m[i], m1, v[i], v1)
            assert abs(p[i] - wanted) <= 1e-6 * max(1, abs(wanted)), (i, p[i], wanted)
            got = model.weights[t][i]
            assert got == (bf16(p[i]) if t == 0 else p[i])
    assert model.checksum() == first.checksum()

# Saved, loaded into another engine, and stepped: the same state in all engines.
must(lib.hocket_save(first.engine, b"state.ck", message))
other = Model((Group(1, 0, 0, 1, 0),) * 2, 3)
assert other.checksum() != first.checksum()
must(lib.hocket_load(other.engine, b"state.ck", message))
must(lib.hocket_weights_from_masters(other.engine, -1, None, message))
assert other.checksum() == first.checksum() and lib.hocket_step_number(other.engine) == 1
assert all(list(other.weights[t]) == list(first.weights[t]) for t in range(2))
for model in engines + [other]:
    model.hand_over(gradients)
    model.hand_over(gradients)
    must(lib.hocket_step(model.engine, None, None, None, message))
    must(lib.hocket_drain(model.engine, -1, message))
    assert model.checksum() == first.checksum() and lib.hocket_step_number(model.engine) == 2
    answer = text()
    must(lib.hocket_report(model.engine, ctypes.byref(answer), message))
    report = json.loads(answer.value)
    lib.hocket_free(answer)
    assert report["steps"] == 2 and report["tensors"] == 2, report

# A gradient that is not finite: the step is skipped and the state is unchanged.
before = first.checksum()
gradients[0][3000] = 0x7F80
info = Info()
first.hand_over(gradients)
must(lib.hocket_step(first.engine, None, ctypes.byref(info), None, message))
assert info.skipped and info.nonfinite == 1 and info.step == 2
assert first.checksum() == before

# Errors have a message and the same status as the command line's exit status.
with open("text", "w", encoding="utf-8") as file:
    file.write("no checkpoint, but long enough to be one")
refused(lib.hocket_read(first.engine, 7, 0, 0, 1, message, message), 2, "part 7")
refused(lib.hocket_discard(first.engine, 2, message), 2, "no tensor 2")
refused(lib.hocket_load(first.engine, b"text", message), 2, "text", "not a checkpoint")
refused(lib.hocket_save(first.engine, b"no/such/folder/x", message), 2, "no/such/folder")
assert lib.hocket_read(first.engine, 7, 0, 0, 1, message, None) == 2
for arguments, words in (({"plan": b"missing.json"}, "missing.json"), ({"plan": b"{]"}, "plan"),
                         ({"device": 9999}, "9999"), ({"backend": b"abacus"}, "abacus")):
    model = Model(hyper, 0, **arguments)
    refused(model.status, 2, words)
    assert not model.engine
for model in engines + [other]:
    lib.hocket_destroy(model.engine)
lib.hocket_destroy(None)
print("all went well")
EOF
# A library with AddressSanitizer needs that preloaded; leak detection is off since Python leaks.
# Python does not start with ThreadSanitizer.
preload=
symbols=$(nm -D "$library")
[[ $symbols != *__tsan_init* ]] || { echo "ThreadSanitizer: skipped" && exit 77; }
[[ $symbols != *__asan_init* ]] || preload=$("${CC:-cc}" -print-file-name=libasan.so)
LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 python3 drive.py "$library" >said
grep -qx "all went well" said
