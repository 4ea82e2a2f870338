/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints. A file is, in little-endian order:
 *
 *   header   "hocketck", version, groups, parameters, step, then per group its parameters and
 *            lr, beta1, beta2, eps, weight decay as doubles; except in version 1 the number of
 *            tensors, then per tensor its elements, group, steps, and from version 3 on the hash of
 *            its name (0: none); in version 4 the name of the state's format in 16 bytes, and the
 *            seed of its random bits; XXH3-64 of all that, chained
 *   blocks   p, then m, then v, in flat order, each in runs of BLOCK parameters (the last of each
 *            has the rest): fp32 values, XXH3-64 of them
 *   trailer  XXH3-64 of the blocks' hashes, chained, "hocketok"
 *
 * Chained: one hash after the other, each with the one before as its seed (0 for the first): in the
 * header of its first 32 bytes, of each group, of the number of tensors, of each tensor, of format
 * and seed.
 *
 * State in fp32 is saved as version 3, in other formats as version 4. Values are fp32 in both,
 * which is exact. Loading rounds m and v to nearest even if the engine keeps them in bf16 and the
 * file has other values, and notes it; all other loads are exact.
 *
 * It is written aside, synced and renamed (core/base/outfile.c), so that it is complete or not
 * there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "core/base/infile.h"
#include "core/base/outfile.h"
#include "core/graph/bytes.h"
#include "engine/device/arena.h"
#include "engine/engine.h"
#include "engine/private.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "checkpoints are written in the machine's byte order, which must be little-endian"
#endif

#define BLOCK            ((int64_t)1 << 22)
#define HUGE_PAGE        ((size_t)1 << 21)
#define VERSION_FORMAT   4u
#define VERSION_FP32     3u
#define VERSION_NAMELESS 2u /* tensors in order */
#define VERSION_FLAT     1u /* no tensors: all have taken the file's steps */

static const char magic[] = "hocketck", end_magic[] = "hocketok"; /* in files without the 0 */

typedef struct {
  char magic[8];
  uint32_t version, n_groups;
  int64_t numel, step;
} file_head;

typedef struct {
  int64_t numel;
  double lr, beta1, beta2, eps, weight_decay;
} file_group;

typedef struct {
  int64_t numel, group, step;
  uint64_t key; /* not in version 2 */
} file_param;

static size_t param_bytes(uint32_t version) {
  return version == VERSION_NAMELESS ? offsetof(file_param, key) : sizeof(file_param);
}

typedef struct {
  char name[16]; /* filled with 0 */
  uint64_t seed;
} file_format;

typedef struct {
  uint64_t hashes;
  char magic[8];
} file_trailer;

static int64_t blocks_of(int64_t numel) {
  return (numel + BLOCK - 1) / BLOCK;
}

/* `n_params` -1: a file without tensors. */
static hk_bytes file_size(const file_head *head, int64_t n_params) {
  const int64_t numel = head->numel;
  return (hk_bytes)(sizeof(file_head) + head->n_groups * sizeof(file_group) + sizeof(uint64_t)) +
         (n_params < 0 ? 0 : 8 + n_params * (hk_bytes)param_bytes(head->version)) +
         (head->version == VERSION_FORMAT ? (hk_bytes)sizeof(file_format) : 0) +
         3 * (4 * numel + (hk_bytes)sizeof(uint64_t) * blocks_of(numel)) +
         (hk_bytes)sizeof(file_trailer);
}

static hk_status allocate_block(const hk_engine *e, float **block, hk_error *err) {
  const size_t bytes = 4 * (size_t)(hk_engine_numel(e) < BLOCK ? hk_engine_numel(e) : BLOCK);
  *block = malloc(bytes);
  return *block != NULL ? HK_OK : hk_fail_memory(err, bytes, "a block of a checkpoint");
}

/* -- Saving ------------------------------------------------------------------------------------ */

/* Write errors are kept by the stream and reported when it is closed. */
static uint64_t write_params(const hk_engine *e, FILE *out, uint64_t sum) {
  const int64_t n = (int64_t)e->n_params;
  sum = XXH3_64bits_withSeed(&n, sizeof n, sum);
  fwrite(&n, sizeof n, 1, out);
  for (size_t p = 0; p < e->n_params; p++) {
    const file_param param = {e->params[p].numel, e->params[p].group, e->param_step[p],
                              e->params[p].key};
    sum = XXH3_64bits_withSeed(&param, sizeof param, sum);
    fwrite(&param, sizeof param, 1, out);
  }
  return sum;
}

static uint64_t write_format(const hk_engine *e, FILE *out, uint64_t sum) {
  file_format format = {.seed = e->options.seed};
  snprintf(format.name, sizeof format.name, "%s", hk_optimizer_names[e->plan.optimizer]);
  fwrite(&format, sizeof format, 1, out);
  return XXH3_64bits_withSeed(&format, sizeof format, sum);
}

static void write_head(const hk_engine *e, FILE *out) {
  const bool plain = e->state.shape.format == HK_FORMAT_FP32;
  file_head head = {.version = plain ? VERSION_FP32 : VERSION_FORMAT,
                    .n_groups = (uint32_t)e->n_groups,
                    .numel = hk_engine_numel(e),
                    .step = e->step};
  memcpy(head.magic, magic, sizeof head.magic);
  uint64_t sum = XXH3_64bits(&head, sizeof head);
  fwrite(&head, sizeof head, 1, out);
  for (size_t g = 0; g < e->n_groups; g++) {
    const hk_adamw *h = &e->groups[g];
    const file_group group = {e->group_numel[g], h->lr,  h->beta1,
                              h->beta2,          h->eps, h->weight_decay};
    sum = XXH3_64bits_withSeed(&group, sizeof group, sum);
    fwrite(&group, sizeof group, 1, out);
  }
  sum = write_params(e, out, sum);
  if (!plain) sum = write_format(e, out, sum);
  fwrite(&sum, sizeof sum, 1, out);
}

/* Where the values to be written are. */
typedef struct {
  int64_t numel;
  hk_engine *engine;   /* they are read from it into `block`; NULL: they are in `values` */
  float *block;        /* [BLOCK] */
  const float *values; /* [3][numel] p, m, v */
} source;

static hk_status next_block(const source *from, int part, int64_t at, int64_t n,
                            const float **block, hk_error *err) {
  if (from->engine == NULL) {
    *block = from->values + part * from->numel + at;
    return HK_OK;
  }
  *block = from->block;
  return hk_engine_read(from->engine, (hk_state_part)part, at, n, from->block, err);
}

static hk_status write_blocks(const source *from, FILE *out, hk_progress progress, void *arg,
                              hk_error *err) {
  const int64_t numel = from->numel;
  uint64_t hashes = 0;
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    for (int64_t at = 0; at < numel; at += BLOCK) {
      const int64_t n = numel - at < BLOCK ? numel - at : BLOCK;
      const float *block = NULL;
      HK_TRY(next_block(from, part, at, n, &block, err));
      const uint64_t hash = XXH3_64bits(block, 4 * (size_t)n);
      hashes = XXH3_64bits_withSeed(&hash, sizeof hash, hashes);
      fwrite(block, 4, (size_t)n, out);
      fwrite(&hash, sizeof hash, 1, out);
      if (ferror(out)) return HK_OK; /* closing says why */
      if (progress != NULL) progress(arg, 4 * (part * numel + at + n), HK_BYTES_STATE * numel);
    }
  }
  file_trailer trailer = {.hashes = hashes};
  memcpy(trailer.magic, end_magic, sizeof trailer.magic);
  fwrite(&trailer, sizeof trailer, 1, out);
  return HK_OK;
}

static hk_status refuse_mixed(const hk_engine *e, hk_error *err) {
  for (size_t s = 0; s < e->state.n_subgroups; s++) {
    if (e->state.subgroups[s].step == e->step) continue;
    return hk_fail(
        err, HK_ENVIRONMENT,
        "the last step failed and subgroup %zu is not at step %lld: there is no one state "
        "to save; load the last checkpoint into a new engine",
        s, (long long)e->step);
  }
  return HK_OK;
}

static hk_status end_file(hk_outfile *file, hk_status status, hk_error *err) {
  if (status == HK_OK) return hk_outfile_close(file, err);
  hk_outfile_abort(file);
  return status;
}

hk_status hk_engine_save(hk_engine *e, const char *path, hk_progress progress, void *arg,
                         hk_error *err) {
  HK_TRY(hk_training_quiet(e, err));
  HK_TRY(refuse_mixed(e, err));
  source from = {.numel = hk_engine_numel(e), .engine = e};
  hk_outfile *file = NULL;
  HK_TRY(allocate_block(e, &from.block, err));
  hk_status status = hk_outfile_open(path, &file, err);
  if (status == HK_OK) {
    write_head(e, hk_outfile_stream(file));
    status = write_blocks(&from, hk_outfile_stream(file), progress, arg, err);
    status = end_file(file, status, err);
  }
  free(from.block);
  return status;
}

/* -- Snapshots --------------------------------------------------------------------------------- */

struct hk_snapshot {
  char *head; /* what write_head writes */
  size_t head_bytes;
  int64_t numel;
  float *values; /* [3][numel] p, m, v */
};

static hk_status copy_head(const hk_engine *e, hk_snapshot *s, hk_error *err) {
  FILE *out = open_memstream(&s->head, &s->head_bytes);
  if (out == NULL) return hk_fail_memory(err, 1, "the header of a snapshot");
  write_head(e, out);
  const bool whole = ferror(out) == 0;
  return fclose(out) == 0 && whole ? HK_OK : hk_fail_memory(err, 1, "the header of a snapshot");
}

/* Huge pages, because the page faults of the copy would take longer than the copy. */
static hk_status allocate_values(hk_snapshot *s, hk_error *err) {
  const size_t bytes = 3 * 4 * (size_t)s->numel;
  const size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  if ((hk_bytes)whole <= hk_host_available()) s->values = aligned_alloc(HUGE_PAGE, whole);
  if (s->values == NULL) return hk_fail_memory(err, bytes, "a copy of the state");
  (void)madvise(s->values, whole, MADV_HUGEPAGE);
  return HK_OK;
}

hk_status hk_engine_snapshot(hk_engine *e, hk_snapshot **snapshot, hk_error *err) {
  HK_TRY(hk_training_quiet(e, err));
  HK_TRY(refuse_mixed(e, err));
  hk_snapshot *s = calloc(1, sizeof *s);
  if (s == NULL) return hk_fail_memory(err, sizeof *s, "a snapshot");
  s->numel = hk_engine_numel(e);
  hk_status status = copy_head(e, s, err);
  if (status == HK_OK) status = allocate_values(s, err);
  for (int part = HK_STATE_P; part <= HK_STATE_V && status == HK_OK; part++) {
    float *to = s->values + part * s->numel;
    status = hk_engine_read(e, (hk_state_part)part, 0, s->numel, to, err);
  }
  if (status == HK_OK) {
    *snapshot = s;
  } else {
    hk_snapshot_free(s);
  }
  return status;
}

hk_status hk_snapshot_save(const hk_snapshot *s, const char *path, hk_error *err) {
  const source from = {.numel = s->numel, .values = s->values};
  hk_outfile *file = NULL;
  HK_TRY(hk_outfile_open(path, &file, err));
  fwrite(s->head, 1, s->head_bytes, hk_outfile_stream(file));
  return end_file(file, write_blocks(&from, hk_outfile_stream(file), NULL, NULL, err), err);
}

void hk_snapshot_free(hk_snapshot *s) {
  if (s == NULL) return;
  free(s->head);
  free(s->values);
  free(s);
}

/* -- Loading ----------------------------------------------------------------------------------- */

typedef struct {
  const char *path;
  FILE *in;
  file_head head;
  file_group *groups;
  int64_t n_params; /* -1: a file without tensors */
  file_param *params;
  file_format format; /* version 4 */
  size_t *numbers;    /* [n_params] each tensor's number in the engine; NULL: the same */
} reader;

static hk_status damaged(const reader *r, const char *what, hk_error *err) {
  return hk_fail(err, HK_INPUT,
                 "%s: %s is damaged: its checksum does not match; use another checkpoint", r->path,
                 what);
}

static hk_status read_bytes(const reader *r, void *to, size_t bytes, hk_error *err) {
  if (fread(to, 1, bytes, r->in) == bytes) return HK_OK;
  if (ferror(r->in)) {
    return hk_fail(err, errno == EISDIR ? HK_INPUT : HK_ENVIRONMENT, "cannot read '%s': %s",
                   r->path, strerror(errno));
  }
  return hk_fail(err, HK_INPUT, "%s: the file is cut off; use another checkpoint", r->path);
}

static hk_status read_params(reader *r, uint64_t *sum, hk_error *err) {
  HK_TRY(read_bytes(r, &r->n_params, sizeof r->n_params, err));
  /* Checks counts against the file's length before memory for them is allocated. */
  struct stat info;
  const bool known = fstat(fileno(r->in), &info) == 0 && S_ISREG(info.st_mode);
  const size_t bytes = param_bytes(r->head.version);
  const int64_t most = known ? info.st_size / (int64_t)bytes : INT32_MAX;
  if (r->n_params < 1 || r->n_params > hk_min(most, INT32_MAX)) {
    return damaged(r, "the header", err);
  }
  r->params = calloc((size_t)r->n_params, sizeof *r->params);
  if (r->params == NULL) {
    return hk_fail_memory(err, (size_t)r->n_params * sizeof *r->params, "a checkpoint's tensors");
  }
  *sum = XXH3_64bits_withSeed(&r->n_params, sizeof r->n_params, *sum);
  for (int64_t p = 0; p < r->n_params; p++) {
    HK_TRY(read_bytes(r, &r->params[p], bytes, err));
    *sum = XXH3_64bits_withSeed(&r->params[p], bytes, *sum);
  }
  return HK_OK;
}

static hk_status read_head(reader *r, hk_error *err) {
  file_head *head = &r->head;
  HK_TRY(read_bytes(r, head, sizeof *head, err));
  if (memcmp(head->magic, magic, sizeof head->magic) != 0) {
    return hk_fail(err, HK_INPUT, "%s: not a checkpoint of hocket", r->path);
  }
  if (head->version < VERSION_FLAT || head->version > VERSION_FORMAT) {
    return hk_fail(err, HK_INPUT, "%s: checkpoint version %u, this hocket reads versions %u to %u",
                   r->path, head->version, VERSION_FLAT, VERSION_FORMAT);
  }
  if (head->n_groups < 1 || head->n_groups > HK_MOST_PARAM_GROUPS)
    return damaged(r, "the header", err);
  r->groups = calloc(head->n_groups, sizeof *r->groups);
  if (r->groups == NULL) {
    return hk_fail_memory(err, head->n_groups * sizeof *r->groups, "a checkpoint's groups");
  }
  HK_TRY(read_bytes(r, r->groups, head->n_groups * sizeof *r->groups, err));
  uint64_t sum = XXH3_64bits(head, sizeof *head), stored = 0;
  for (uint32_t g = 0; g < head->n_groups; g++) {
    sum = XXH3_64bits_withSeed(&r->groups[g], sizeof *r->groups, sum);
  }
  r->n_params = -1;
  if (head->version != VERSION_FLAT) HK_TRY(read_params(r, &sum, err));
  if (head->version == VERSION_FORMAT) {
    HK_TRY(read_bytes(r, &r->format, sizeof r->format, err));
    sum = XXH3_64bits_withSeed(&r->format, sizeof r->format, sum);
  }
  HK_TRY(read_bytes(r, &stored, sizeof stored, err));
  return stored == sum && head->step >= 0 ? HK_OK : damaged(r, "the header", err);
}

/* -- Which tensor is which --------------------------------------------------------------------- */

typedef struct {
  uint64_t key;
  size_t number;
} keyed;

static int by_key(const void *a, const void *b) {
  const uint64_t one = ((const keyed *)a)->key, other = ((const keyed *)b)->key;
  return one < other ? -1 : one > other;
}

/* Sorts by key; false: a key is 0 or occurs twice. */
static bool sort_keys(keyed *list, size_t n) {
  qsort(list, n, sizeof *list, by_key);
  bool distinct = list[0].key != 0;
  for (size_t i = 1; i < n; i++) distinct = distinct && list[i].key != list[i - 1].key;
  return distinct;
}

uint64_t hk_checkpoint_key(const char *name) {
  const uint64_t key = XXH3_64bits(name, strlen(name));
  return key != 0 ? key : 1;
}

static hk_status match(reader *r, keyed *file, keyed *mine, size_t n, hk_error *err) {
  if (!sort_keys(file, n) || !sort_keys(mine, n)) return HK_OK;
  r->numbers = calloc(n, sizeof *r->numbers);
  if (r->numbers == NULL) return hk_fail_memory(err, n * sizeof *r->numbers, "tensors' numbers");
  for (size_t i = 0; i < n; i++) {
    r->numbers[file[i].number] = mine[i].number;
    if (file[i].key == mine[i].key) continue;
    return hk_fail(err, HK_INPUT,
                   "%s: the engine's tensors have other names than the file's: no tensor has the "
                   "name of the file's tensor %zu, or the file lacks the engine's tensor %zu",
                   r->path, file[i].number, mine[i].number);
  }
  return HK_OK;
}

/* Matches tensors by name, if all tensors of file and engine have names that occur once; else by
 * number. */
static hk_status match_params(reader *r, const hk_engine *e, hk_error *err) {
  if (r->n_params != (int64_t)e->n_params) return HK_OK; /* refused later */
  const size_t n = e->n_params;
  keyed *lists = calloc(2 * n, sizeof *lists);
  if (lists == NULL) return hk_fail_memory(err, 2 * n * sizeof *lists, "tensors' names");
  for (size_t p = 0; p < n; p++) {
    lists[p] = (keyed){r->params[p].key, p};
    lists[n + p] = (keyed){e->params[p].key, p};
  }
  const hk_status status = match(r, lists, lists + n, n, err);
  free(lists);
  return status;
}

static size_t number_of(const reader *r, size_t param) {
  return r->numbers != NULL ? r->numbers[param] : param;
}

/* -- Checks ------------------------------------------------------------------------------------ */

static hk_status check_params(const reader *r, const hk_engine *e, hk_error *err) {
  if (r->n_params < 0) return HK_OK;
  if (r->n_params != (int64_t)e->n_params) {
    return hk_fail(err, HK_INPUT, "%s: a checkpoint of %lld tensors, the engine has %zu", r->path,
                   (long long)r->n_params, e->n_params);
  }
  for (size_t p = 0; p < e->n_params; p++) {
    const file_param *f = &r->params[p];
    const hk_param *mine = &e->params[number_of(r, p)];
    if (f->numel == mine->numel && f->group == mine->group) continue;
    return hk_fail(err, HK_INPUT,
                   "%s: tensor %zu has %lld elements in group %lld, the engine's has %lld in group "
                   "%d",
                   r->path, p, (long long)f->numel, (long long)f->group, (long long)mine->numel,
                   (int)mine->group);
  }
  return HK_OK;
}

/* Checks that header and engine have the same parameters, and that the file has the length that
 * follows from the header. */
static hk_status check_fit(const reader *r, const hk_engine *e, hk_error *err) {
  const file_head *head = &r->head;
  if (head->numel != hk_engine_numel(e)) {
    return hk_fail(err, HK_INPUT, "%s: a checkpoint of %lld parameters, the engine has %lld",
                   r->path, (long long)head->numel, (long long)hk_engine_numel(e));
  }
  if (head->n_groups != e->n_groups) {
    return hk_fail(err, HK_INPUT, "%s: a checkpoint of %u parameter groups, the engine has %zu",
                   r->path, head->n_groups, e->n_groups);
  }
  for (size_t g = 0; g < e->n_groups; g++) {
    if (r->groups[g].numel == e->group_numel[g]) continue;
    return hk_fail(err, HK_INPUT,
                   "%s: parameter group %zu has %lld parameters, the engine's has %lld", r->path, g,
                   (long long)r->groups[g].numel, (long long)e->group_numel[g]);
  }
  HK_TRY(check_params(r, e, err));
  struct stat info;
  const hk_bytes wanted = file_size(head, r->n_params);
  if (fstat(fileno(r->in), &info) == 0 && S_ISREG(info.st_mode) && info.st_size != wanted) {
    return hk_fail(err, HK_INPUT,
                   "%s: %lld bytes, a checkpoint of %lld parameters has %lld: the file "
                   "is cut off or something was appended; use another checkpoint",
                   r->path, (long long)info.st_size, (long long)head->numel, (long long)wanted);
  }
  return HK_OK;
}

/* Writes values at .. at + n - 1 of the file's flat order to their tensors in the engine. */
static hk_status apply(const reader *r, hk_engine *e, hk_state_part part, int64_t at, int64_t n,
                       const float *values, hk_error *err) {
  if (r->numbers == NULL) return hk_engine_write(e, part, at, n, values, err);
  int64_t begin = 0;
  for (int64_t p = 0; p < r->n_params && begin < at + n; p++) {
    const int64_t numel = r->params[p].numel, end = begin + numel;
    const int64_t from = hk_max(begin, at), to = hk_min(end, at + n);
    if (from < to) {
      const int64_t place = e->flat_end[r->numbers[p]] - numel + (from - begin);
      HK_TRY(hk_engine_write(e, part, place, to - from, values + (from - at), err));
    }
    begin = end;
  }
  return HK_OK;
}

/* Reads and verifies all blocks; with `applies` also writes them into the engine. */
static hk_status read_blocks(const reader *r, hk_engine *e, bool applies, float *block,
                             hk_progress progress, void *arg, hk_error *err) {
  const int64_t numel = r->head.numel;
  uint64_t hashes = 0;
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    for (int64_t at = 0; at < numel; at += BLOCK) {
      const int64_t n = numel - at < BLOCK ? numel - at : BLOCK;
      uint64_t hash = 0;
      HK_TRY(read_bytes(r, block, 4 * (size_t)n, err));
      HK_TRY(read_bytes(r, &hash, sizeof hash, err));
      if (hash != XXH3_64bits(block, 4 * (size_t)n)) {
        char what[96];
        snprintf(what, sizeof what, "%c of parameters %lld to %lld", "pmv"[part], (long long)at,
                 (long long)(at + n - 1));
        return damaged(r, what, err);
      }
      hashes = XXH3_64bits_withSeed(&hash, sizeof hash, hashes);
      HK_TRY(applies ? apply(r, e, (hk_state_part)part, at, n, block, err)
                     : hk_engine_check_values(e, (hk_state_part)part, at, n, block, err));
      const hk_bytes done = 4 * (part * numel + at + n) + (applies ? HK_BYTES_STATE * numel : 0);
      if (progress != NULL) progress(arg, done, 2 * HK_BYTES_STATE * numel);
    }
  }
  file_trailer trailer;
  HK_TRY(read_bytes(r, &trailer, sizeof trailer, err));
  const bool right =
      trailer.hashes == hashes && memcmp(trailer.magic, end_magic, sizeof trailer.magic) == 0;
  return right ? HK_OK : damaged(r, "the end", err);
}

static void apply_groups(const reader *r, hk_engine *e) {
  for (size_t g = 0; g < e->n_groups; g++) {
    const file_group *from = &r->groups[g];
    e->groups[g] = (hk_adamw){.lr = from->lr,
                              .beta1 = from->beta1,
                              .beta2 = from->beta2,
                              .eps = from->eps,
                              .weight_decay = from->weight_decay};
  }
}

/* Random bits go on with the file's seed. Notes that m and v were rounded. */
static void take_format(const reader *r, hk_engine *e) {
  const bool plain = r->head.version != VERSION_FORMAT;
  const char *name = plain ? hk_optimizer_names[HK_OPTIMIZER_FP32] : r->format.name;
  if (!plain) e->options.seed = r->format.seed;
  const hk_format format = e->state.shape.format;
  const char *own = hk_format_is_coded(format) ? "8bit" : "bf16"; /* the length is that of both */
  if (!hk_format_is_random(format) || strncmp(name, own, 4) == 0) return;
  if (strncmp(name, "8bit", 4) == 0 && hk_format_is_short(format)) return; /* bf16 holds codes */
  char note[128];
  snprintf(note, sizeof note,
           "m and v of a checkpoint of state '%.15s' were rounded to %s, to nearest even", name,
           hk_format_is_coded(format) ? "8 bits" : "bf16");
  hk_engine_add_note(e, note);
}

/* Two passes: the first verifies the file before anything is changed, the second verifies each
 * block again and applies it. */
static hk_status load(reader *r, hk_engine *e, float *block, hk_progress progress, void *arg,
                      hk_error *err) {
  HK_TRY(read_head(r, err));
  if (r->n_params >= 0) HK_TRY(match_params(r, e, err));
  HK_TRY(check_fit(r, e, err));
  const off_t blocks = ftello(r->in);
  HK_TRY(read_blocks(r, e, false, block, progress, arg, err));
  if (fseeko(r->in, blocks, SEEK_SET) != 0) {
    return hk_fail(err, HK_INPUT, "cannot read '%s' twice: %s", r->path, strerror(errno));
  }
  HK_TRY(hk_engine_discard(e, -1, err));
  HK_TRY(hk_engine_clear_codes(e, err));
  const hk_status status = read_blocks(r, e, true, block, progress, arg, err);
  if (status != HK_OK) {
    /* The file changed between the passes, or the device failed: the state is a mixture. */
    hk_engine_lose_state(e, 0, e->state.numel);
    const hk_error why = *err;
    return hk_fail(err, HK_ENVIRONMENT, "the engine's state is lost: %s", why.message);
  }
  apply_groups(r, e);
  take_format(r, e);
  HK_TRY(hk_engine_set_step(e, r->head.step, err));
  for (int64_t p = 0; p < r->n_params; p++) {
    e->param_step[number_of(r, (size_t)p)] = r->params[p].step;
  }
  return HK_OK;
}

hk_status hk_engine_load(hk_engine *e, const char *path, hk_progress progress, void *arg,
                         hk_error *err) {
  HK_TRY(hk_training_quiet(e, err));
  if (e->failed) {
    return hk_fail(err, HK_ENVIRONMENT,
                   "this engine's last step failed: make a new one and load '%s' into that", path);
  }
  reader r = {.path = path};
  if (hk_infile_stream(path, "a checkpoint", &r.in, err) != HK_OK)
    return hk_fail_prefix(err, "cannot read '%s'", path);
  float *block = NULL;
  hk_status status = allocate_block(e, &block, err);
  if (status == HK_OK) status = load(&r, e, block, progress, arg, err);
  free(block);
  free(r.groups);
  free(r.params);
  free(r.numbers);
  fclose(r.in);
  return status;
}
