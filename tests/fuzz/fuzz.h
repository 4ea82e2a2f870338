/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by the fuzz targets. A target defines LLVMFuzzerTestOneInput: any bytes give a value or
 * an error with a message, never a crash, a leak or a hang, and what was read can be used. With
 * clang, libFuzzer calls it on inputs of its own (scripts/fuzz); with gcc, replay.c calls it on the
 * files of tests/fuzz/corpus/READER. */
#ifndef HK_TESTS_FUZZ_FUZZ_H
#define HK_TESTS_FUZZ_FUZZ_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/base/error.h"
#include "core/graph/plan.h"
#include "core/machine/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Aborts and prints the place if the condition is false. */
#define FUZZ_MUST(condition) \
  ((condition) ? (void)0 : hk_fuzz_abort(__FILE__, __LINE__, #condition, NULL))
_Noreturn void hk_fuzz_abort(const char *file, int line, const char *what, const char *message);

/* Checks the status that a reader returned and returns whether it is HK_OK. A failure must have its
 * status and a message in *err, and must not be "out of memory": inputs are small. */
bool hk_fuzz_read(hk_status status, const hk_error *err);

/* The path of a file in memory that holds these bytes, until the next call. */
const char *hk_fuzz_file(const uint8_t *data, size_t size);
/* The path of `name` in a folder of this process's own, which is removed at exit. */
const char *hk_fuzz_path(const char *name);
/* All bytes of a file; the caller frees them. */
uint8_t *hk_fuzz_contents(const char *path, size_t *size);

/* The value of a JSON text, which must also be printable and, printed, the same again; NULL if it
 * was refused. */
cJSON *hk_fuzz_json(const uint8_t *data, size_t size);

/* Numbers from bytes; 0 when they have run out. */
typedef struct {
  const uint8_t *at;
  size_t left;
} hk_fuzz_stream;
uint8_t hk_fuzz_byte(hk_fuzz_stream *stream);
/* From `least` to `most`, both ends included. */
int64_t hk_fuzz_int(hk_fuzz_stream *stream, int64_t least, int64_t most);
/* Either end, or log-uniform between them, at least most / 10^12; one byte. */
double hk_fuzz_scale(hk_fuzz_stream *stream, double least, double most);

/* A legal machine. Each quantity takes one byte and can be at either end of its range. */
hk_machine hk_fuzz_machine(hk_fuzz_stream *stream);
/* Whether the plan is small enough to be simulated for each input. */
bool hk_fuzz_is_small(const hk_plan *plan);
/* Simulates whole iterations (hk_forecast_make) with every invariant checked (sim/check.c) and
 * compares the update with its lower bounds. Takes over *plan. */
void hk_fuzz_simulate(hk_plan *plan, const hk_machine *machine);

#endif
