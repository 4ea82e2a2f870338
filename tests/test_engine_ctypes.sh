#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# libhocket from Python, by ctypes: a step against AdamW in plain Python, state and checkpoints in
# and out, and errors as sentences.
set -euo pipefail
hocket=$1
library=$(dirname "$hocket")/libhocket.so
command -v python3 >/dev/null || { echo "no python3: skipped" && exit 77; }
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here"

cat >tiny.json <<'EOF'
{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64,
 "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
 "max_position_embeddings": 4096}
EOF
for policy in zero-offload streamed; do
  "$hocket" simulate --model tiny.json --machine h200-16c --policy $policy --subgroup 5000 \
    --cpu-threads 1 -o $policy.json --quiet >/dev/null
done

cat >drive.py <<'EOF'
import ctypes
import json
import math
import random
import struct
import sys

lib = ctypes.CDLL(sys.argv[1])
i64, f64, ptr, text = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p
P, M, V, W = range(4)


class Group(ctypes.Structure):
    _fields_ = [("numel", i64)] + [(k, f64) for k in
                                   ("lr", "beta1", "beta2", "eps", "weight_decay")]


class Options(ctypes.Structure):
    _fields_ = [("backend", text), ("device", ctypes.c_int32), ("fp16", ctypes.c_int32),
                ("max_norm", f64), ("device_weights", ptr), ("no_pinning", ctypes.c_int32),
                ("first_core", ctypes.c_int32)]


class Info(ctypes.Structure):
    _fields_ = [("loss_scale", f64), ("sum_of_squares", f64), ("step", i64),
                ("skipped", ctypes.c_int32), ("nonfinite", i64), ("grad_norm", f64),
                ("update_ms", f64)]


lib.hocket_version.restype = text
lib.hocket_numel.restype = lib.hocket_step_number.restype = i64
lib.hocket_weights.restype = ptr
lib.hocket_write.argtypes = [ptr, ctypes.c_int, i64, i64, ptr, text]
lib.hocket_read.argtypes = [ptr, ctypes.c_int, i64, i64, ptr, text]
lib.hocket_gradients.argtypes = [ptr, i64, i64, ptr, ctypes.c_int, text]
lib.hocket_set_group.argtypes = [ptr, ctypes.c_size_t, ptr, text]
for name in ("numel", "step_number", "weights", "destroy"):
    getattr(lib, "hocket_" + name).argtypes = [ptr]

message = ctypes.create_string_buffer(1024)


def must(status):
    assert status == 0, message.value
    assert message.value == b""


def refused(status, expected, *words):
    assert status == expected, (status, message.value)
    for word in words:
        assert word in message.value.decode(), (word, message.value)


def create(plan, groups, **options):
    engine = ptr()
    array = (Group * len(groups))(*groups)
    status = lib.hocket_create(plan, array, ctypes.c_size_t(len(groups)),
                               ctypes.byref(Options(backend=b"host", no_pinning=1, **options)),
                               ctypes.byref(engine), message)
    return status, engine


def read(engine, part, n):
    data = (ctypes.c_uint16 * n if part == W else ctypes.c_float * n)()
    must(lib.hocket_read(engine, part, 0, n, data, message))
    return list(data)


def checksum(engine):
    hexadecimal = ctypes.create_string_buffer(33)
    must(lib.hocket_checksum(engine, hexadecimal, message))
    assert len(hexadecimal.value) == 32
    return hexadecimal.value


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def widened(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def close(got, wanted):
    # The engine rounds to fp32 after each operation, this to fp64.
    return abs(got - wanted) <= 1e-5 * abs(wanted) + 1e-12


with open("zero-offload.json", encoding="utf-8") as file:
    plan = json.load(file)
n = sum(subgroup["numel"] for subgroup in plan["subgroups"])
random.seed(7)
half = n // 2 + 13
groups = [Group(half, 1e-2, 0.9, 0.999, 1e-8, 0.1), Group(n - half, 3e-3, 0.8, 0.95, 1e-6, 0.0)]
weights = [random.uniform(-1, 1) for _ in range(n)]
gradients = [bf16(random.gauss(0, 0.01)) for _ in range(n)]
p_in = (ctypes.c_float * n)(*weights)
g_in = (ctypes.c_uint16 * n)(*gradients)

assert lib.hocket_version().count(b".") == 2
status, engine = create(b"zero-offload.json", groups, max_norm=0.5)
must(status)
assert lib.hocket_numel(engine) == n and lib.hocket_step_number(engine) == 0
assert lib.hocket_weights(engine)
must(lib.hocket_write(engine, P, 0, n, p_in, message))
assert read(engine, W, n) == [bf16(w) for w in p_in]
must(lib.hocket_gradients(engine, 0, n, g_in, 0, message))
squares = f64()
must(lib.hocket_sum_of_squares(engine, ctypes.byref(squares), message))
values = [widened(g) for g in gradients]
assert squares.value == math.fsum(v * v for v in values)

# One step of AdamW as torch.optim.AdamW has it.
scale, clip = 256.0, 0.5
norm = math.sqrt(squares.value) / scale
factor = min(1.0, clip / (norm + 1e-6)) / scale
info = Info(loss_scale=scale)
must(lib.hocket_step(engine, ctypes.byref(info), message))
assert info.step == 1 and not info.skipped and info.nonfinite == 0
assert close(info.grad_norm, norm) and info.update_ms > 0
p, m, v, w = (read(engine, part, n) for part in (P, M, V, W))
for i in range(n):
    h = groups[i >= half]
    g = values[i] * factor
    first, second = (1 - h.beta1) * g, (1 - h.beta2) * g * g
    step = h.lr * (first / (1 - h.beta1)) / (math.sqrt(second / (1 - h.beta2)) + h.eps)
    wanted = p_in[i] * (1 - h.lr * h.weight_decay) - step
    assert close(m[i], first) and close(v[i], second), (i, m[i], first, v[i], second)
    assert abs(p[i] - wanted) <= 1e-6 * max(1, abs(wanted)), (i, p[i], wanted)
    assert w[i] == bf16(p[i])

# The same state under another plan, from JSON text, by way of a file; on from there in step.
must(lib.hocket_save(engine, b"state.ck", message))
with open("streamed.json", "rb") as file:
    status, other = create(file.read(), groups, max_norm=0.5)
must(status)
assert checksum(other) != checksum(engine)
must(lib.hocket_load(other, b"state.ck", message))
assert checksum(other) == checksum(engine) and lib.hocket_step_number(other) == 1
slower = Group(0, 1e-4, 0.9, 0.999, 1e-8, 0.0)
for each in (engine, other):
    must(lib.hocket_set_group(each, 1, ctypes.byref(slower), message))
    must(lib.hocket_gradients(each, half, n - half, ctypes.byref(g_in, 2 * half), 0, message))
    must(lib.hocket_gradients(each, 0, half, g_in, 0, message))
    must(lib.hocket_step(each, None, message))
assert checksum(other) == checksum(engine) and lib.hocket_step_number(other) == 2

# Gradients that are not finite: said, and nothing is touched.
before = checksum(engine)
g_in[n - 1] = 0x7F80
must(lib.hocket_gradients(engine, 0, n, g_in, 0, message))
must(lib.hocket_sum_of_squares(engine, ctypes.byref(squares), message))
assert math.isinf(squares.value)
info = Info()
must(lib.hocket_step(engine, ctypes.byref(info), message))
assert info.skipped and info.nonfinite == 1 and info.step == 2
assert checksum(engine) == before

# What is wrong is said in a sentence, with the exit status of the command line.
refused(lib.hocket_step(engine, None, message), 2, "gradients for 0 of")
refused(lib.hocket_gradients(engine, n, 1, g_in, 0, message), 2, "parameters")
refused(lib.hocket_read(engine, 7, 0, 1, p_in, message), 2, "no part 7")
refused(lib.hocket_write(engine, W, 0, 1, p_in, message), 2, "follow the master weights")
refused(lib.hocket_set_group(engine, 2, ctypes.byref(slower), message), 2, "parameter group 2")
refused(lib.hocket_load(engine, b"tiny.json", message), 2, "tiny.json", "not a checkpoint")
refused(lib.hocket_save(engine, b"no/such/folder/x", message), 2, "no/such/folder")
assert lib.hocket_read(engine, 7, 0, 1, p_in, None) == 2
for plan, options, words in ((b"missing.json", {}, "missing.json"), (b"{]", {}, "plan"),
                             (b"zero-offload.json", {"device": 9999}, "9999")):
    status, nothing = create(plan, groups, **options)
    refused(status, 2, words)
    assert not nothing
status = lib.hocket_create(b"zero-offload.json", (Group * 2)(*groups), ctypes.c_size_t(2),
                           ctypes.byref(Options(backend=b"abacus")), ctypes.byref(ptr()), message)
refused(status, 2, "abacus", "host")
lib.hocket_destroy(engine)
lib.hocket_destroy(other)
lib.hocket_destroy(None)
print("all went well")
EOF
# A library that was built with AddressSanitizer needs it loaded first; Python itself leaks.
preload=
if nm -D "$library" | grep __asan_init >sanitized; then
  preload=$("${CC:-cc}" -print-file-name=libasan.so)
fi
LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 python3 drive.py "$library" >said
grep -qx "all went well" said
