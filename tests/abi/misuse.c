/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Calls that libhocket refuses: each gives a message, and the engine continues to the same bits.
 *
 *   misuse TOTAL */
#include "world.h"

static int64_t total;

/* -- Creating ---------------------------------------------------------------------------------- */

typedef void (*spoil)(hocket_tensor *tensors, hocket_group *groups, hocket_options *options);

static void no_elements(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[3].numel = 0;
}
static void too_many_elements(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[3].numel = INT64_MAX;
}
static void earlier_block(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[3].block = 0;
  t[3].name = "named";
}
static void negative_block(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[0].block = -1;
}
static void far_block(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[7].block = INT32_MAX;
}
static void wrong_group(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[2].group = MOST_GROUPS;
}
static void negative_group(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[2].group = -1;
}
static void wrong_weight_type(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[2].weight_type = 3;
}
static void wrong_grad_type(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)g, (void)o;
  t[2].grad_type = -1;
}
static void wrong_beta(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)o;
  g[1].beta2 = 1;
}
static void no_number(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)o;
  g[0].lr = NAN;
}
static void wrong_backend(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)g;
  o->backend = "abacus";
}
static void wrong_device(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)g;
  o->device = 9999;
}
static void negative_device(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)g;
  o->device = -1;
}
static void wrong_overlap(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)g;
  o->overlap = 4;
}
static void negative_threads(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)g;
  o->cpu_threads = -1;
}
static void negative_core(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)g;
  o->first_core = -1;
}
static void negative_memory(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)g;
  o->host_memory = -1;
}
static void little_memory(hocket_tensor *t, hocket_group *g, hocket_options *o) {
  (void)t, (void)g;
  o->host_memory = 100000;
}

static int create_spoilt(world *w, spoil change, const char *plan) {
  hocket_tensor tensors[MOST_TENSORS];
  hocket_group groups[MOST_GROUPS];
  hocket_options options = {.backend = "host", .cpu_threads = 1};
  hocket_engine *engine = (hocket_engine *)w;
  describe_tensors(w, tensors);
  memcpy(groups, w->groups, sizeof groups);
  if (change != NULL) change(tensors, groups, &options);
  const int code =
      hocket_create(plan, tensors, w->n, groups, MOST_GROUPS, &options, &engine, message);
  CHECK(code != 0 && engine == NULL);
  return code;
}

static void creation(void) {
  static const struct {
    spoil change;
    int code;
    const char *word;
  } list[] = {{no_elements, 2, "tensor 3"},     {too_many_elements, 2, "tensor 3"},
              {earlier_block, 2, "named"},      {negative_block, 2, "tensor 0"},
              {far_block, 2, "tensor 7"},       {wrong_group, 2, "tensor 2"},
              {negative_group, 2, "tensor 2"},  {wrong_weight_type, 2, "type 3"},
              {wrong_grad_type, 2, "type -1"},  {wrong_beta, 2, "group 1"},
              {no_number, 2, "group 0"},        {wrong_backend, 2, "abacus"},
              {wrong_device, 2, "9999"},        {negative_device, 2, "-1"},
              {wrong_overlap, 2, "overlap 4"},  {negative_threads, 2, "cpu_threads"},
              {negative_core, 2, "first core"}, {negative_memory, 2, "host_memory"},
              {little_memory, 1, "host_memory"}};
  world w;
  open_model(&w, 31, total);
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    REFUSED(create_spoilt(&w, list[i].change, NULL), list[i].code, list[i].word);
  }
  REFUSED(create_spoilt(&w, NULL, "missing.json"), 2, "missing.json");
  REFUSED(create_spoilt(&w, NULL, "{]"), 2, "plan");
  REFUSED(create_spoilt(&w, NULL, "{}"), 2, "schema");
  REFUSED(create_spoilt(&w, NULL, ""), 2, "cannot be opened");
  hocket_tensor tensors[MOST_TENSORS];
  hocket_engine *engine = NULL;
  describe_tensors(&w, tensors);
  REFUSED(hocket_create(NULL, tensors, w.n, w.groups, 2, NULL, NULL, message), 2, "NULL");
  REFUSED(hocket_create(NULL, NULL, w.n, w.groups, 2, NULL, &engine, message), 2, "tensors");
  REFUSED(hocket_create(NULL, tensors, 0, w.groups, 2, NULL, &engine, message), 2, "one tensor");
  REFUSED(hocket_create(NULL, tensors, w.n, NULL, 2, NULL, &engine, message), 2, "groups");
  REFUSED(hocket_create(NULL, tensors, w.n, w.groups, 0, NULL, &engine, message), 2, "groups");
  REFUSED(hocket_create(NULL, tensors, SIZE_MAX, w.groups, 2, NULL, &engine, message), 2,
          "at most");
  REFUSED(hocket_create(NULL, tensors, w.n, w.groups, SIZE_MAX, NULL, &engine, message), 2,
          "groups");
  CHECK(hocket_create(NULL, NULL, w.n, w.groups, 2, NULL, &engine, NULL) == 2);
  close_world(&w); /* without an engine */
}

/* -- Calls on an engine ------------------------------------------------------------------------ */

static void without_engine(void) {
  float x = 0;
  char hex[33];
  int64_t step = 0;
  const hocket_gradient g = {0, &x};
  const hocket_group group = {.lr = 1};
  REFUSED(hocket_set_weight(NULL, 0, &x, message), 2, "no engine");
  REFUSED(hocket_masters(NULL, -1, NULL, message), 2, "no engine");
  REFUSED(hocket_wait_weights(NULL, 0, NULL, 0, message), 2, "no engine");
  REFUSED(hocket_drain(NULL, 0, message), 2, "no engine");
  REFUSED(hocket_gradients(NULL, &g, 1, NULL, message), 2, "no engine");
  REFUSED(hocket_flush(NULL, message), 2, "no engine");
  REFUSED(hocket_discard(NULL, -1, message), 2, "no engine");
  REFUSED(hocket_scale(NULL, 1, message), 2, "no engine");
  REFUSED(hocket_expect(NULL, 1, message), 2, "no engine");
  REFUSED(hocket_sum_of_squares(NULL, -1, NULL, NULL, message), 2, "no engine");
  int64_t words[HOCKET_SQUARES];
  REFUSED(hocket_squares(NULL, NULL, words, message), 2, "no engine");
  REFUSED(hocket_read_gradient(NULL, 0, &x, message), 2, "no engine");
  REFUSED(hocket_step(NULL, NULL, NULL, NULL, message), 2, "no engine");
  REFUSED(hocket_set_group(NULL, 0, &group, message), 2, "no engine");
  REFUSED(hocket_write(NULL, HOCKET_P, 0, 0, 1, &x, message), 2, "no engine");
  REFUSED(hocket_read(NULL, HOCKET_P, 0, 0, 1, &x, message), 2, "no engine");
  REFUSED(hocket_weights_from_masters(NULL, -1, NULL, message), 2, "no engine");
  REFUSED(hocket_get_tensor_step(NULL, 0, &step, message), 2, "no engine");
  REFUSED(hocket_set_tensor_step(NULL, 0, 1, message), 2, "no engine");
  REFUSED(hocket_save(NULL, "x.ck", message), 2, "no engine");
  REFUSED(hocket_load(NULL, "x.ck", message), 2, "no engine");
  REFUSED(hocket_checksum(NULL, hex, message), 2, "no engine");
  REFUSED(hocket_mark(NULL, 0, 0, 0, NULL, message), 2, "no engine");
  REFUSED(hocket_record(NULL, 1, message), 2, "no engine");
  char *text = (char *)hex;
  uint8_t held;
  REFUSED(hocket_report(NULL, &text, message), 2, "no engine");
  CHECK(text == NULL);
  REFUSED(hocket_timeline(NULL, &text, message), 2, "no engine");
  REFUSED(hocket_held(NULL, &held, message), 2, "no engine");
  hocket_free(NULL);
  CHECK(hocket_step_number(NULL) == 0);
  hocket_destroy(NULL);
}

static void wrong_gradients(world *w) {
  float *x = w->tensors[0].handed;
  hocket_engine *e = w->engine;
  const hocket_gradient none = {0, NULL}, before = {-1, x}, behind = {(int64_t)w->n, x};
  const hocket_gradient late[] = {{0, x}, {1, x}, {99, x}};
  REFUSED(hocket_gradients(e, NULL, 1, NULL, message), 2, "NULL");
  REFUSED(hocket_gradients(e, &none, 1, NULL, message), 2, "tensor 0");
  REFUSED(hocket_gradients(e, &before, 1, NULL, message), 2, "-1");
  REFUSED(hocket_gradients(e, &behind, 1, NULL, message), 2, "8 tensors");
  REFUSED(hocket_gradients(e, late, 3, NULL, message), 2, "tensor 99");
  const hocket_gradient uneven[] = {{0, x}, {1, (char *)x + 1}};
  REFUSED(hocket_gradients(e, uneven, 2, NULL, message), 2, "gradient of tensor 1 is at");
  REFUSED(hocket_discard(e, (int64_t)w->n, message), 2, "no tensor 8");
  REFUSED(hocket_discard(e, -2, message), 2, "no tensor -2");
  REFUSED(hocket_scale(e, 0, message), 2, "positive");
  REFUSED(hocket_expect(e, -1, message), 2, "-1 gradients");
  REFUSED(hocket_scale(e, -1, message), 2, "positive");
  REFUSED(hocket_scale(e, NAN, message), 2, "positive");
  REFUSED(hocket_scale(e, INFINITY, message), 2, "finite");
  REFUSED(hocket_held(e, NULL, message), 2, "NULL");
  REFUSED(hocket_report(e, NULL, message), 2, "NULL");
  REFUSED(hocket_timeline(e, NULL, message), 2, "NULL");
  REFUSED(hocket_sum_of_squares(e, 8, NULL, NULL, message), 2, "no tensor 8");
  REFUSED(hocket_squares(e, NULL, NULL, message), 2, "NULL");
  REFUSED(hocket_squares_value(NULL, NULL, NULL, message), 2, "NULL");
  REFUSED(hocket_read_gradient(e, 8, x, message), 2, "no tensor 8");
  REFUSED(hocket_read_gradient(e, 0, NULL, message), 2, "NULL");
}

static void wrong_steps(world *w) {
  static const hocket_step_options wrong[] = {{.max_norm = -1},    {.max_norm = NAN},
                                              {.loss_scale = -2},  {.loss_scale = INFINITY},
                                              {.loss_scale = NAN}, {.sum_of_squares = -1}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    hocket_step_info info = {0};
    REFUSED(hocket_step(w->engine, &wrong[i], &info, NULL, message), 2, "max_norm");
    CHECK(info.step == 0); /* not written */
  }
  const hocket_group group = {.lr = -1};
  REFUSED(hocket_set_group(w->engine, 0, &group, message), 2, "lr -1");
  REFUSED(hocket_set_group(w->engine, 2, &w->groups[0], message), 2, "group 2");
  REFUSED(hocket_set_group(w->engine, 0, NULL, message), 2, "NULL");
  REFUSED(hocket_wait_weights(w->engine, w->blocks, NULL, 0, message), 2, "no block 5");
  REFUSED(hocket_wait_weights(w->engine, -2, NULL, 0, message), 2, "no block -2");
}

static void wrong_state(world *w) {
  hocket_engine *e = w->engine;
  float *x = w->tensors[0].handed;
  const int64_t n = w->tensors[0].t.numel;
  char hex[33];
  REFUSED(hocket_read(e, 3, 0, 0, 1, x, message), 2, "part 3");
  REFUSED(hocket_write(e, -1, 0, 0, 1, x, message), 2, "part -1");
  REFUSED(hocket_read(e, HOCKET_P, 8, 0, 1, x, message), 2, "no tensor 8");
  REFUSED(hocket_read(e, HOCKET_P, 0, -1, 1, x, message), 2, "tensor 0");
  REFUSED(hocket_read(e, HOCKET_P, 0, 1, n, x, message), 2, "tensor 0");
  REFUSED(hocket_read(e, HOCKET_P, 0, INT64_MAX, INT64_MAX, x, message), 2, "tensor 0");
  REFUSED(hocket_read(e, HOCKET_P, 0, 0, -1, x, message), 2, "tensor 0");
  REFUSED(hocket_read(e, HOCKET_P, 0, 0, 1, NULL, message), 2, "NULL");
  REFUSED(hocket_write(e, HOCKET_P, 0, 0, 1, NULL, message), 2, "NULL");
  REFUSED(hocket_write(e, HOCKET_V, 0, n, 1, x, message), 2, "tensor 0");
  MUST(hocket_read(e, HOCKET_P, 0, n, 0, NULL, message)); /* 0 elements at the end */
  MUST(hocket_write(e, HOCKET_P, 0, 0, 0, NULL, message));
  REFUSED(hocket_set_weight(e, 8, x, message), 2, "no tensor 8");
  REFUSED(hocket_masters(e, 8, NULL, message), 2, "no tensor 8");
  REFUSED(hocket_masters(e, -2, NULL, message), 2, "no tensor -2");
  REFUSED(hocket_weights_from_masters(e, 8, NULL, message), 2, "no tensor 8");
  REFUSED(hocket_get_tensor_step(e, 8, NULL, message), 2, "no tensor 8");
  REFUSED(hocket_get_tensor_step(e, 0, NULL, message), 2, "NULL");
  REFUSED(hocket_set_tensor_step(e, 8, 1, message), 2, "no tensor 8");
  REFUSED(hocket_set_tensor_step(e, 0, -1, message), 2, "-1");
  REFUSED(hocket_checksum(e, NULL, message), 2, "NULL");
  REFUSED(hocket_save(e, NULL, message), 2, "NULL");
  REFUSED(hocket_load(e, NULL, message), 2, "NULL");
  REFUSED(hocket_save(e, "no/such/folder/x.ck", message), 2, "no/such/folder");
  hocket_snapshot *snapshot = NULL;
  REFUSED(hocket_snapshot_take(e, NULL, message), 2, "NULL");
  REFUSED(hocket_snapshot_take(NULL, &snapshot, message), 2, "no engine");
  REFUSED(hocket_snapshot_save(NULL, "x.ck", message), 2, "NULL");
  MUST(hocket_snapshot_take(e, &snapshot, message));
  REFUSED(hocket_snapshot_save(snapshot, NULL, message), 2, "NULL");
  REFUSED(hocket_snapshot_save(snapshot, "no/such/folder/x.ck", message), 2, "no/such/folder");
  hocket_snapshot_free(snapshot);
  hocket_snapshot_free(NULL);
  REFUSED(hocket_load(e, "missing.ck", message), 2, "missing.ck");
  REFUSED(hocket_load(e, "/", message), 2, "/");
  MUST(hocket_checksum(e, hex, message));
  /* Masters of all tensors, one without weights: none is changed. */
  void *kept = w->tensors[6].t.weight;
  put(HOCKET_BF16, 42, w->tensors[0].t.weight, 0);
  MUST(hocket_set_weight(e, 6, NULL, message));
  REFUSED(hocket_masters(e, -1, NULL, message), 2, "tensor 6");
  MUST(hocket_set_weight(e, 6, kept, message));
  memcpy(w->tensors[0].t.weight, w->tensors[0].expected, 2 * (size_t)n);
}

static void wrong_marks(world *w) {
  MUST(hocket_mark(w->engine, 7, 7, 7, NULL, message)); /* ignored without a recording */
  MUST(hocket_record(w->engine, 1, message));
  REFUSED(hocket_mark(w->engine, 4, 0, 0, NULL, message), 2, "phase 4");
  REFUSED(hocket_mark(w->engine, -1, 0, 0, NULL, message), 2, "phase -1");
  REFUSED(hocket_mark(w->engine, 0, 5, 0, NULL, message), 2, "block 5");
  REFUSED(hocket_mark(w->engine, 0, -1, 0, NULL, message), 2, "block -1");
  MUST(hocket_mark(w->engine, 1, 3, 1, NULL, message)); /* an end without a start */
  MUST(hocket_record(w->engine, 0, message));
}

/* Wrong calls in every phase of an iteration. */
static void on_an_engine(int overlap) {
  world w;
  open_world(&w, 32, total, NULL, overlap, 2);
  for (int i = 0; i < 5; i++) {
    wrong_gradients(&w);
    forward(&w);
    for (size_t k = w.n; k-- > 4;) hand_over(&w, k);
    wrong_gradients(&w);
    if (i % 2 == 0) wrong_state(&w);
    wrong_steps(&w);
    wrong_marks(&w);
    for (size_t k = 4; k-- > 0;) hand_over(&w, k);
    wrong_steps(&w);
    take_step(&w, NULL, 1);
    wrong_gradients(&w); /* during the update */
    wrong_steps(&w);
    if (i % 2 == 1) {
      MUST(hocket_drain(w.engine, -1, message));
      wrong_state(&w);
    }
    CHECK(hocket_wait_weights(w.engine, 99, NULL, 0, NULL) == 2);
  }
  check_all(&w);
  close_world(&w);
}

/* A checkpoint of other tensors, one that is cut off, one with a flipped bit. */
static void wrong_checkpoints(void) {
  world w, other;
  char *text = NULL;
  long size = 0;
  open_world(&w, 33, total, NULL, HOCKET_OVERLAP_FORWARD, 1);
  open_world(&other, 33, total + 1, NULL, HOCKET_OVERLAP_FORWARD, 1);
  iterate(&w, 2);
  MUST(hocket_save(other.engine, "other.ck", message));
  REFUSED(hocket_load(w.engine, "other.ck", message), 2, "parameters");
  MUST(hocket_save(w.engine, "own.ck", message));
  FILE *file = fopen("own.ck", "rb");
  CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0);
  text = malloc((size_t)size);
  rewind(file);
  CHECK(text != NULL && fread(text, 1, (size_t)size, file) == (size_t)size && fclose(file) == 0);
  for (int i = 0; i < 40; i++) {
    const long length = i % 2 == 0 ? size - 1 - i * (size / 41) : size;
    const long at = i % 2 == 1 ? (i < 20 ? i * 20 : i * (size / 41)) : -1;
    if (at >= 0) text[at] ^= (char)(1 << i % 8);
    file = fopen("own.ck", "wb");
    CHECK(file != NULL && fwrite(text, 1, (size_t)length, file) == (size_t)length);
    CHECK(fclose(file) == 0);
    if (at >= 0) text[at] ^= (char)(1 << i % 8);
    REFUSED(hocket_load(w.engine, "own.ck", message), 2, "own.ck");
  }
  iterate(&w, 2);
  check_all(&w);
  free(text);
  close_world(&w);
  close_world(&other);
  CHECK(remove("own.ck") == 0 && remove("other.ck") == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  total = atoll(argv[1]);
  CHECK(hocket_abi() == HOCKET_ABI && strchr(hocket_version(), '.') != NULL);
  creation();
  without_engine();
  for (int overlap = HOCKET_OVERLAP_NONE; overlap <= HOCKET_OVERLAP_BOTH; overlap++) {
    on_an_engine(overlap);
  }
  wrong_checkpoints();
  puts("misuse: all went well");
  return 0;
}
