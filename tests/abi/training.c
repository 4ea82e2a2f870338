/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Training through libhocket gives the bits of plain AdamW if, between two steps, a program
 * accumulates, discards, scales or skips gradients, reads state, saves, loads, or is killed.
 *
 *   training TOTAL [PLAN...]     models and plans of TOTAL parameters; no PLAN: the library's */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

static int64_t total;
static const char *const *plans; /* NULL-terminated, a NULL first: no plan */
static int n_plans;

/* Calls `look` with each plan and overlap. */
static void each(void (*look)(const char *plan, int overlap)) {
  for (int p = -1; p < n_plans; p++) {
    for (int overlap = HOCKET_OVERLAP_NONE; overlap <= HOCKET_OVERLAP_BOTH; overlap++) {
      look(p < 0 ? NULL : plans[p], overlap);
    }
  }
}

static void plain_iterations(const char *plan, int overlap) {
  world w;
  open_world(&w, 11, total, plan, overlap, 2);
  CHECK(hocket_step_number(w.engine) == 0);
  iterate(&w, 12);
  check_all(&w);
  if (overlap != HOCKET_OVERLAP_BOTH) CHECK(w.ahead == 0);
  close_world(&w);
}

/* Without a plan gpu_memory keeps state on the GPU under every overlap, also under the default. */
static void gpu_memory(const char *plan, int overlap) {
  world w;
  if (plan != NULL) return;
  const int overlaps[] = {HOCKET_OVERLAP_PLAN, overlap};
  for (int i = 0; i < 2; i++) {
    open_model(&w, 23, total);
    const hocket_options options = {
        .backend = "host", .overlap = overlaps[i], .gpu_memory = 1 << 30};
    MUST(open_engine(&w, NULL, &options));
    char *report;
    MUST(hocket_report(w.engine, &report, message));
    CHECK(strstr(report, "\"resident\":0") == NULL);
    hocket_free(report);
    close_world(&w);
  }
}

/* Several passes; some tensors are handed over twice in one call, late, or not at all. */
static void accumulation(const char *plan, int overlap) {
  world w;
  open_world(&w, 12, total, plan, overlap, 1);
  for (int i = 0; i < 8; i++) {
    forward(&w);
    for (int pass = 0; pass < 1 + i % 3; pass++) {
      for (size_t k = w.n; k-- > 0;) {
        if ((k + (size_t)i) % 5 != 0) hand_over(&w, k);
      }
      if (i % 2 == 0) MUST(hocket_flush(w.engine, message));
    }
    hand_over(&w, 2); /* late */
    take_step(&w, NULL, 1);
  }
  CHECK(w.tensors[0].step < 8 && w.tensors[2].step == 8);
  check_all(&w);
  close_world(&w);
}

static void one_call_with_all(const char *plan, int overlap) {
  world w;
  open_world(&w, 13, total, plan, overlap, 2);
  for (int i = 0; i < 4; i++) {
    hocket_gradient list[2 * MOST_TENSORS];
    forward(&w);
    for (size_t k = 0; k < w.n; k++) {
      tensor *t = &w.tensors[k];
      for (int64_t e = 0; e < t->t.numel; e++) {
        const float g = 0.02f * centred(&w.d);
        put(t->t.grad_type, g, t->handed, e);
        const float one = get(t->t.grad_type, t->handed, e);
        put(t->t.grad_type, one + one, t->grad, e);
      }
      t->given = 2;
      list[k] = list[w.n + k] = (hocket_gradient){(int64_t)k, t->handed};
    }
    MUST(hocket_gradients(w.engine, list, 2 * w.n, NULL, message));
    MUST(hocket_gradients(w.engine, NULL, 0, NULL, message)); /* 0 gradients: no effect */
    take_step(&w, NULL, 1);
  }
  check_all(&w);
  close_world(&w);
}

static void discarding(const char *plan, int overlap) {
  world w;
  open_world(&w, 14, total, plan, overlap, 1);
  iterate(&w, 3);
  for (int i = 0; i < 4; i++) {
    forward(&w);
    backward(&w);
    MUST(hocket_scale(w.engine, 0.25, message));
    MUST(hocket_discard(w.engine, -1, message)); /* discards the factor, too */
    for (size_t k = 0; k < w.n; k++) w.tensors[k].given = 0;
    if (i % 2 == 0) backward(&w);
    MUST(hocket_discard(w.engine, 2, message));
    w.tensors[2].given = 0;
    hand_over(&w, 5);
    if (i == 2) hand_over(&w, 2);
    take_step(&w, NULL, 1);
  }
  check_all(&w);
  /* Discards all gradients one by one. The step after that does nothing. */
  backward(&w);
  for (size_t k = 0; k < w.n; k++) {
    MUST(hocket_discard(w.engine, (int64_t)k, message));
    w.tensors[k].given = 0;
  }
  hocket_step_info info;
  MUST(hocket_step(w.engine, NULL, &info, NULL, message));
  CHECK(info.step == w.steps && info.tensors == 0 && info.skipped == 0);
  check_all(&w);
  iterate(&w, 2);
  check_all(&w);
  close_world(&w);
}

static void scales(const char *plan, int overlap) {
  world w;
  open_world(&w, 15, total, plan, overlap, 2);
  const hocket_step_options options[] = {{.loss_scale = 1024},
                                         {.loss_scale = 3, .max_norm = 0.01},
                                         {.max_norm = 0.1, .sum_of_squares = 7.25},
                                         {.wait = 1}};
  for (int i = 0; i < 12; i++) {
    forward(&w);
    backward(&w);
    const double factor = i % 3 == 0 ? 0.5 : 1;
    if (i % 3 == 0) {
      MUST(hocket_scale(w.engine, 2, message));
      MUST(hocket_scale(w.engine, 0.5, message)); /* the last call counts */
    }
    if (i % 5 == 0) {
      w.groups[1].lr *= 0.7;
      MUST(hocket_set_group(w.engine, 1, &w.groups[1], message));
    }
    take_step(&w, &options[i % 4], factor);
    if (i % 4 == 3) check_weights(&w, -1); /* the call above has waited for them */
  }
  /* A factor applies to the next step only, also if that step has no gradients. */
  MUST(hocket_scale(w.engine, 8, message));
  MUST(hocket_step(w.engine, NULL, NULL, NULL, message));
  iterate(&w, 2);
  check_all(&w);
  close_world(&w);
}

/* With values that are not finite the step is skipped, counts them and changes nothing. */
static void skipping(const char *plan, int overlap) {
  world w;
  open_world(&w, 16, total, plan, overlap, 1);
  iterate(&w, 2);
  for (int type = 0; type < 3; type++) {
    static const size_t of_type[] = {2, 4, 3}; /* a tensor with such gradients */
    hocket_step_info info = {0};
    double sum = 0;
    int64_t nonfinite = -1;
    backward(&w);
    tensor *t = &w.tensors[of_type[type]];
    for (int64_t k = 0; k < t->t.numel; k++) put(t->t.grad_type, 1, t->handed, k);
    put(t->t.grad_type, INFINITY, t->handed, t->t.numel - 1);
    const hocket_gradient bad = {(int64_t)of_type[type], t->handed};
    MUST(hocket_gradients(w.engine, &bad, 1, NULL, message));
    MUST(hocket_sum_of_squares(w.engine, -1, &sum, &nonfinite, message));
    CHECK(isfinite(sum) && nonfinite == 1);
    MUST(hocket_sum_of_squares(w.engine, 0, NULL, &nonfinite, message));
    CHECK(nonfinite == 0);
    const hocket_step_options options = {.max_norm = 1};
    MUST(hocket_step(w.engine, &options, &info, NULL, message));
    CHECK(info.skipped == 1 && info.nonfinite == 1 && info.step == w.steps);
    for (size_t k = 0; k < w.n; k++) w.tensors[k].given = 0;
    check_all(&w);
    iterate(&w, 1);
  }
  /* Nor with such values of another rank. */
  backward(&w);
  hocket_step_info info = {0};
  const hocket_step_options options = {.sum_of_squares = INFINITY};
  MUST(hocket_step(w.engine, &options, &info, NULL, message));
  CHECK(info.skipped == 1 && info.nonfinite == 0);
  for (size_t k = 0; k < w.n; k++) w.tensors[k].given = 0;
  iterate(&w, 2);
  check_all(&w);
  close_world(&w);
}

/* Ranks that count disjoint tensors: their words add up to the sum of all, to the bit. */
static void check_words(world *w) {
  double all = -1, sum = -1;
  int64_t added[HOCKET_SQUARES] = {0}, words[HOCKET_SQUARES], nonfinite = -1;
  MUST(hocket_sum_of_squares(w->engine, -1, &all, NULL, message));
  for (size_t rank = 0; rank < 3; rank++) {
    uint8_t counts[MOST_TENSORS] = {0};
    for (size_t i = rank; i < w->n; i += 3) counts[i] = 1;
    MUST(hocket_squares(w->engine, counts, words, message));
    for (int i = 0; i < HOCKET_SQUARES; i++) added[i] += words[i];
  }
  MUST(hocket_squares_value(added, &sum, &nonfinite, message));
  CHECK(sum == all && nonfinite == 0);
  MUST(hocket_squares(w->engine, NULL, words, message));
  MUST(hocket_squares_value(words, &sum, NULL, message));
  CHECK(sum == all);
  added[0] = INT64_MIN; /* has overflowed, as with 2^31 ranks */
  REFUSED(hocket_squares_value(added, &sum, NULL, message), 2, "2^31 ranks");
}

static void check_gradients(world *w) {
  double sum = -1;
  int64_t nonfinite = -1;
  MUST(hocket_sum_of_squares(w->engine, -1, &sum, &nonfinite, message));
  CHECK(near(sum, (double)plain_squares(w, -1)) && nonfinite == 0);
  check_words(w);
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    MUST(hocket_sum_of_squares(w->engine, (int64_t)i, &sum, NULL, message));
    CHECK(near(sum, (double)plain_squares(w, (int64_t)i)));
    const size_t bytes = (size_t)t->t.numel * size_of(t->t.grad_type);
    void *got = room(t->t.numel);
    if (t->given > 0) {
      MUST(hocket_read_gradient(w->engine, i, got, message));
      CHECK(memcmp(got, t->grad, bytes) == 0);
    } else {
      REFUSED(hocket_read_gradient(w->engine, i, got, message), 2, "no gradient");
    }
    free(got);
  }
}

/* Reads gradients back from the engine; reads, writes and counts state between two gradients. */
static void looking(const char *plan, int overlap) {
  world w;
  open_world(&w, 17, total, plan, overlap, 2);
  for (int i = 0; i < 6; i++) {
    char hex[33];
    forward(&w);
    check_gradients(&w);
    for (size_t k = w.n; k-- > 3;) hand_over(&w, k);
    check_state(&w);
    if (i >= 2) { /* state changes where updates may have run ahead of the norm */
      tensor *t = &w.tensors[7];
      for (int64_t k = 100; k < 200; k++) t->m[k] = 0.01f * centred(&w.d);
      MUST(hocket_write(w.engine, HOCKET_M, 7, 100, 100, t->m + 100, message));
    }
    if (i == 4) {
      MUST(hocket_set_tensor_step(w.engine, 6, 40, message));
      w.tensors[6].step = 40;
      memcpy(w.tensors[5].p, w.tensors[5].expected, 4 * (size_t)w.tensors[5].t.numel);
      MUST(hocket_masters(w.engine, 5, NULL, message));
      MUST(hocket_weights_from_masters(w.engine, -1, NULL, message));
    }
    MUST(hocket_checksum(w.engine, hex, message));
    CHECK(strlen(hex) == 32);
    for (size_t k = 3; k-- > 0;) hand_over(&w, k);
    hand_over(&w, 3);
    check_gradients(&w);
    take_step(&w, NULL, 1);
  }
  check_all(&w);
  close_world(&w);
}

/* Copies between masters and weights in both directions; weights at a new address. */
static void weights(const char *plan, int overlap) {
  world w;
  open_world(&w, 18, total, plan, overlap, 1);
  iterate(&w, 3);
  MUST(hocket_drain(w.engine, -1, message));
  for (size_t i = 0; i < w.n; i++) {
    tensor *t = &w.tensors[i];
    void *moved = room(t->t.numel);
    MUST(hocket_set_weight(w.engine, i, moved, message));
    free(t->t.weight);
    t->t.weight = moved;
    MUST(hocket_weights_from_masters(w.engine, (int64_t)i, NULL, message));
  }
  check_all(&w);
  iterate(&w, 2);
  /* Written masters reach the weights by a call. */
  tensor *t = &w.tensors[4];
  for (int64_t k = 0; k < t->t.numel; k++) t->p[k] = centred(&w.d);
  MUST(hocket_write(w.engine, HOCKET_P, 4, 0, t->t.numel, t->p, message));
  MUST(hocket_drain(w.engine, -1, message));
  check_weights(&w, -1);
  for (int64_t k = 0; k < t->t.numel; k++) put(t->t.weight_type, t->p[k], t->expected, k);
  MUST(hocket_weights_from_masters(w.engine, 4, NULL, message));
  check_all(&w);
  /* A tensor without weights is updated, too. */
  MUST(hocket_set_weight(w.engine, 1, NULL, message));
  void *kept = w.tensors[1].t.weight;
  backward(&w);
  take_step(&w, NULL, 1);
  MUST(hocket_drain(w.engine, -1, message));
  check_state(&w);
  MUST(hocket_set_weight(w.engine, 1, kept, message));
  MUST(hocket_weights_from_masters(w.engine, -1, NULL, message));
  check_all(&w);
  close_world(&w);
}

/* Device memory is given back between steps: other calls work without it, the next gradient takes
 * it again, and no bit changes. */
static void released(const char *plan, int overlap) {
  world w;
  open_world(&w, 23, total, plan, overlap, 1);
  const int64_t all = hocket_gpu_bytes(w.engine);
  CHECK(all > 0 && hocket_gpu_bytes(NULL) == 0);
  for (int i = 0; i < 3; i++) {
    iterate(&w, 2);
    MUST(hocket_release_gpu(w.engine, message));
    CHECK(hocket_gpu_bytes(w.engine) < all);
    check_all(&w);
    MUST(hocket_discard(w.engine, -1, message));
    double sum = 1;
    MUST(hocket_sum_of_squares(w.engine, -1, &sum, NULL, message));
    CHECK(sum == 0);
    MUST(hocket_weights_from_masters(w.engine, -1, NULL, message));
    MUST(hocket_release_gpu(w.engine, message));
    forward(&w);
    hand_over(&w, w.n - 1);
    CHECK(hocket_gpu_bytes(w.engine) == all);
    REFUSED(hocket_release_gpu(w.engine, message), 2, "no step has used");
    for (size_t k = w.n - 1; k-- > 0;) hand_over(&w, k);
    take_step(&w, NULL, 1);
  }
  check_all(&w);
  close_world(&w);
}

static void load_into(world *to, const world *from, const char *path) {
  MUST(hocket_load(to->engine, path, message));
  MUST(hocket_weights_from_masters(to->engine, -1, NULL, message));
  for (size_t i = 0; i < to->n; i++) {
    tensor *t = &to->tensors[i];
    const tensor *f = &from->tensors[i];
    const size_t n = (size_t)t->t.numel;
    memcpy(t->p, f->p, 4 * n);
    memcpy(t->m, f->m, 4 * n);
    memcpy(t->v, f->v, 4 * n);
    memcpy(t->expected, f->expected, 4 * n);
    t->step = f->step;
    t->given = 0;
  }
  memcpy(to->groups, from->groups, sizeof to->groups);
  to->steps = from->steps;
}

/* A checkpoint of every plan and overlap is loaded under the next one, with parameter groups and
 * the steps of tensors. */
static void checkpoints(const char *plan, int overlap) {
  static const char path[] = "abi.ck";
  world w, other;
  char hex[2][33];
  open_world(&w, 19, total, plan, overlap, 1);
  iterate(&w, 3);
  w.groups[0].lr = 5e-4;
  MUST(hocket_set_group(w.engine, 0, &w.groups[0], message));
  hand_over(&w, 3);
  take_step(&w, NULL, 1);
  MUST(hocket_save(w.engine, path, message)); /* during the update */
  MUST(hocket_checksum(w.engine, hex[0], message));
  for (int p = -1; p < n_plans; p++) {
    open_world(&other, 20, total, p < 0 ? NULL : plans[p], 1 + (overlap + p + 1) % 3, 2);
    iterate(&other, 1);
    backward(&other); /* loading discards these gradients */
    load_into(&other, &w, path);
    CHECK(hocket_step_number(other.engine) == w.steps);
    MUST(hocket_checksum(other.engine, hex[1], message));
    CHECK(strcmp(hex[0], hex[1]) == 0);
    check_all(&other);
    other.d = (dice){5};
    iterate(&other, 3);
    check_all(&other);
    close_world(&other);
  }
  w.d = (dice){5};
  iterate(&w, 3);
  check_all(&w);
  close_world(&w);
  CHECK(remove(path) == 0);
}

static bool same_files(const char *one, const char *other) {
  FILE *files[2] = {fopen(one, "rb"), fopen(other, "rb")};
  CHECK(files[0] != NULL && files[1] != NULL);
  int a, b;
  do {
    a = getc(files[0]);
    b = getc(files[1]);
  } while (a == b && a != EOF);
  fclose(files[0]);
  fclose(files[1]);
  return a == b;
}

/* A snapshot taken during the update, written when the engine has taken further steps and when it
 * is gone, is the file that hocket_save would have written. */
static void snapshots(const char *plan, int overlap) {
  static const char *const paths[] = {"abi.ck", "early.ck", "late.ck"};
  world w;
  hocket_snapshot *snapshot = NULL;
  open_world(&w, 25, total, plan, overlap, 1);
  iterate(&w, 2);
  hand_over(&w, 3);
  take_step(&w, NULL, 1);
  MUST(hocket_snapshot_take(w.engine, &snapshot, message));
  MUST(hocket_save(w.engine, paths[0], message));
  iterate(&w, 2);
  MUST(hocket_snapshot_save(snapshot, paths[1], message));
  check_all(&w);
  close_world(&w);
  MUST(hocket_snapshot_save(snapshot, paths[2], message));
  hocket_snapshot_free(snapshot);
  for (int i = 1; i < 3; i++) {
    CHECK(same_files(paths[0], paths[i]));
    CHECK(remove(paths[i]) == 0);
  }
  CHECK(remove(paths[0]) == 0);
}

/* A child process saves in an endless loop and is killed: the file that it leaves is complete. */
static void a_kill_while_saving(void) {
  static const char path[] = "killed.ck";
  world w;
  for (int round = 0; round < 6; round++) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      open_world(&w, 21, total, NULL, HOCKET_OVERLAP_FORWARD, 1);
      for (;;) {
        iterate(&w, 1);
        MUST(hocket_save(w.engine, path, message));
      }
    }
    while (access(path, F_OK) != 0) usleep(1000);
    usleep((useconds_t)(3000 + 2711 * round));
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, NULL, 0) == child);
    world again;
    open_world(&again, 21, total, NULL, HOCKET_OVERLAP_NONE, 1);
    MUST(hocket_load(again.engine, path, message));
    const int64_t steps = hocket_step_number(again.engine);
    CHECK(steps > 0);
    open_world(&w, 21, total, NULL, HOCKET_OVERLAP_BOTH, 1); /* the same by way of training */
    for (int64_t i = 0; i < steps; i++) iterate(&w, 1);
    load_into(&again, &w, path);
    check_all(&again);
    close_world(&again);
    close_world(&w);
    CHECK(remove(path) == 0);
  }
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  total = atoll(argv[1]);
  plans = (const char *const *)argv + 2;
  n_plans = argc - 2;
  static void (*const looks[])(const char *plan, int overlap) = {
      plain_iterations, accumulation, one_call_with_all, discarding, scales,     skipping,
      looking,          weights,      checkpoints,       snapshots,  gpu_memory, released};
  for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
    each(looks[i]);
    printf("%zu ", i);
    fflush(stdout);
  }
  a_kill_while_saving();
  puts("training: all went well");
  return 0;
}
