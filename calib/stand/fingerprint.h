/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The fingerprint of a machine: the properties that must be equal for a profile to apply. */
#ifndef HK_CALIB_STAND_FINGERPRINT_H
#define HK_CALIB_STAND_FINGERPRINT_H

#include <cjson/cJSON.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "engine/device/backend.h"

/* X(field, key, meaning): texts; "unknown" if they cannot be read. */
#define HK_FINGERPRINT_TEXTS(X)                                                        \
  X(backend, "backend", "cuda or host")                                                \
  X(cpu, "cpu", "model of the processor")                                              \
  X(isa, "isa", "instruction set of the CPU kernels")                                  \
  X(gpu, "gpu", "model of the GPUs")                                                   \
  X(driver, "driver", "of the GPUs")                                                   \
  X(pcie, "pcie", "current generation and width of the first GPU's link: \"5.0 x16\"") \
  X(kernel, "kernel", "of the operating system")                                       \
  X(huge_pages, "huge_pages", "always, madvise or never")                              \
  X(version, "version", "of hocket")

/* X(field, key, meaning): whole numbers; -1: unknown. */
#define HK_FINGERPRINT_NUMBERS(X)                               \
  X(gpus, "gpus", "GPUs that were probed")                      \
  X(cores, "cores", "physical cores that this process may use") \
  X(numa, "numa_nodes", "NUMA nodes")                           \
  X(memory, "memory_bytes", "host memory that this process may use (cgroups included)")

typedef struct {
#define HK_FINGERPRINT_TEXT(field, key, meaning) char field[128];
  HK_FINGERPRINT_TEXTS(HK_FINGERPRINT_TEXT)
#undef HK_FINGERPRINT_TEXT
#define HK_FINGERPRINT_NUMBER(field, key, meaning) int64_t field;
  HK_FINGERPRINT_NUMBERS(HK_FINGERPRINT_NUMBER)
#undef HK_FINGERPRINT_NUMBER
} hk_fingerprint;

/* Reads the fingerprint of this machine. `device`: the first GPU, opened; `gpus`: number of GPUs
 * that are probed. */
hk_status hk_fingerprint_take(hk_backend *device, int gpus, const char *version,
                              hk_fingerprint *out, hk_error *err);
/* The caller owns the result; NULL when out of memory. */
cJSON *hk_fingerprint_to_json(const hk_fingerprint *f);
hk_status hk_fingerprint_from_json(const cJSON *object, hk_fingerprint *out, hk_error *err);
/* Compares two fingerprints. Returns the number of differences and lists them in `text`: "cpu: Xeon
 * A, here Xeon B; driver: 580, here 590", "" for none. Unknown properties, and amounts of memory
 * within 2 %, count as equal. */
int hk_fingerprint_compare(const hk_fingerprint *of, const hk_fingerprint *here, char *text,
                           size_t size);

#endif
