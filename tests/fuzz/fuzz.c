/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What all fuzz targets share: files in memory, JSON, numbers from bytes. */
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/json.h"

_Noreturn void hk_fuzz_abort(const char *file, int line, const char *what, const char *message) {
  fprintf(stderr, "%s:%d: does not hold: %s%s%s\n", file, line, what, message ? ": " : "",
          message ? message : "");
  abort();
}

/* Compares without <string.h>: libFuzzer puts texts that its functions look for into inputs. */
static bool is_out_of_memory(const hk_error *err) {
  static const char sign[] = "out of memory (";
  size_t matched = 0;
  for (const char *c = err->message; *c && sign[matched]; c++) {
    matched = *c == sign[matched] ? matched + 1 : *c == sign[0];
  }
  return err->status == HK_ENVIRONMENT && !sign[matched];
}

bool hk_fuzz_read(hk_status status, const hk_error *err) {
  if (status == HK_OK) return true;
  if (err->status != status || !*err->message)
    hk_fuzz_abort(__FILE__, __LINE__, "a failure has its status and a message", err->message);
  if (is_out_of_memory(err))
    hk_fuzz_abort(__FILE__, __LINE__, "no small input asks for more memory than there is",
                  err->message);
  return false;
}

/* -- Files ------------------------------------------------------------------------------------- */

static void must_write(int fd, const uint8_t *data, size_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, data, size);
    if (n <= 0) hk_fuzz_abort(__FILE__, __LINE__, "a file in memory can be written", NULL);
    data += n;
    size -= (size_t)n;
  }
}

const char *hk_fuzz_file(const uint8_t *data, size_t size) {
  static int fd = -1;
  static char path[40];
  if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
  FUZZ_MUST(fd >= 0 && ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
  must_write(fd, data, size);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

static char folder[64];
static char names[8][32]; /* of the files in it */
static size_t n_names;

static void remove_folder(void) {
  for (size_t i = 0; i < n_names; i++) unlink(hk_fuzz_path(names[i]));
  rmdir(folder);
}

static void make_folder(void) {
  const bool in_memory = access("/dev/shm", W_OK) == 0;
  strcpy(folder, in_memory ? "/dev/shm/hocket-fuzz-XXXXXX" : "/tmp/hocket-fuzz-XXXXXX");
  FUZZ_MUST(mkdtemp(folder) != NULL);
  atexit(remove_folder);
}

const char *hk_fuzz_path(const char *name) {
  static char path[sizeof folder + sizeof *names];
  if (!*folder) make_folder();
  size_t i = 0;
  while (i < n_names && strcmp(names[i], name) != 0) i++;
  FUZZ_MUST(i < sizeof names / sizeof *names && strlen(name) < sizeof *names);
  if (i == n_names) snprintf(names[n_names++], sizeof *names, "%s", name);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

uint8_t *hk_fuzz_contents(const char *path, size_t *size) {
  FILE *in = fopen(path, "rb");
  if (in == NULL) hk_fuzz_abort(__FILE__, __LINE__, "a file can be read", path);
  struct stat info;
  FUZZ_MUST(fstat(fileno(in), &info) == 0);
  *size = (size_t)info.st_size;
  uint8_t *bytes = malloc(*size + 1);
  FUZZ_MUST(bytes != NULL && fread(bytes, 1, *size, in) == *size);
  bytes[*size] = 0;
  fclose(in);
  return bytes;
}

/* -- JSON -------------------------------------------------------------------------------------- */

cJSON *hk_fuzz_json(const uint8_t *data, size_t size) {
  hk_error err = {0};
  cJSON *root = NULL, *again = NULL;
  if (!hk_fuzz_read(hk_json_parse((const char *)data, size, "input", &root, &err), &err)) {
    return NULL;
  }
  char *text = cJSON_PrintUnformatted(root);
  FUZZ_MUST(text != NULL);
  hk_fuzz_read(hk_json_parse(text, strlen(text), "again", &again, &err), &err);
  if (again == NULL) hk_fuzz_abort(__FILE__, __LINE__, "what was printed is read", err.message);
  FUZZ_MUST(cJSON_Compare(root, again, true));
  cJSON_Delete(again);
  cJSON_free(text);
  return root;
}

/* -- Numbers ----------------------------------------------------------------------------------- */

uint8_t hk_fuzz_byte(hk_fuzz_stream *stream) {
  if (stream->left == 0) return 0;
  stream->left--;
  return *stream->at++;
}

int64_t hk_fuzz_int(hk_fuzz_stream *stream, int64_t least, int64_t most) {
  uint64_t value = 0, range = (uint64_t)most - (uint64_t)least;
  for (uint64_t r = range; r > 0; r >>= 8) value = value << 8 | hk_fuzz_byte(stream);
  return (int64_t)((uint64_t)least + (range == UINT64_MAX ? value : value % (range + 1)));
}

double hk_fuzz_scale(hk_fuzz_stream *stream, double least, double most) {
  const uint8_t byte = hk_fuzz_byte(stream);
  if (byte < 32) return least;
  if (byte < 64) return most;
  const double from = fmax(least, most * 1e-12);
  return from * pow(most / from, (byte - 64) / 192.0);
}

static void make_legal(hk_machine *m) {
  m->gpus.value = floor(m->gpus.value);
  m->cores.value = floor(m->cores.value);
  if (m->host_reserved.value >= m->host_memory.value) m->host_reserved.value = 0;
  if (m->gpu_reserved.value >= m->gpu_memory.value) m->gpu_reserved.value = 0;
  const double least = fmax(m->h2d.value, m->d2h.value);
  m->duplex.value = fmin(fmax(m->duplex.value, least), m->h2d.value + m->d2h.value);
  m->duplex.value = fmin(m->duplex.value, 1e14); /* its range ends there */
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    hk_quantity *quantity = hk_machine_quantity(m, &list[i]);
    quantity->value = fmin(quantity->value, hk_machine_limit(m, quantity));
  }
}

/* The machine, written as JSON, must be accepted by the reader of profiles. */
static void check_legal(const hk_machine *machine) {
  hk_machine again = {0};
  hk_error err = {0};
  cJSON *document = hk_machine_to_json(machine);
  FUZZ_MUST(document != NULL);
  hk_fuzz_read(hk_machine_from_json(document, &again, &err), &err);
  if (again.document == NULL) hk_fuzz_abort(__FILE__, __LINE__, "a legal machine", err.message);
  cJSON_Delete(document);
  hk_machine_free(&again);
}

hk_machine hk_fuzz_machine(hk_fuzz_stream *stream) {
  hk_machine m = {.name = "fuzz"};
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const double value = hk_fuzz_scale(stream, info[i].least, info[i].most);
    *hk_machine_quantity(&m, &info[i]) =
        (hk_quantity){.value = value, .origin = HK_ORIGIN_DEFAULT, .source = "fuzz"};
  }
  make_legal(&m);
  check_legal(&m);
  return m;
}
