/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Several threads, processes and engines: waits with and without a timeout, hand-over from several
 * threads, a forked child, destruction at any moment; and an engine's report and timeline, which
 * are printed for a JSON parser.
 *
 *   threads TOTAL */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

static int64_t total;

/* Whether `scripts/test --full` runs the test, rather than `scripts/test`. */
static int is_full_run(void) {
  return getenv("HOCKET_TEST_FULL") != NULL;
}

/* -- Several threads in one engine ------------------------------------------------------------- */

enum { HELPERS = 4 };

typedef struct {
  world *w;
  pthread_barrier_t *line;
  int number, iterations;
} helper;

/* MUST uses the global `message`; each helper thread has its own. */
static void must_alone(int code, const char *own) {
  if (code == 0) return;
  fprintf(stderr, "a helper: %d, '%s'\n", code, own);
  exit(1);
}

/* Waits for the weights of every block, in an order of its own, then hands over its tensors. */
static void *help(void *argument) {
  const helper *h = argument;
  world *w = h->w;
  char own[HOCKET_MESSAGE];
  for (int i = 0; i < h->iterations; i++) {
    for (int b = 0; b < w->blocks; b++) {
      const int block = (b + h->number) % (w->blocks + 1) - 1; /* -1: all */
      int code;
      while ((code = hocket_wait_weights(w->engine, block, NULL, 1, own)) == HOCKET_AGAIN) {
        CHECK(own[0] != '\0');
      }
      must_alone(code, own);
      check_weights(w, block);
    }
    pthread_barrier_wait(h->line); /* no thread reads weights any more */
    pthread_barrier_wait(h->line); /* gradients have been made */
    for (size_t k = w->n; k-- > 0;) {
      if ((int)k % HELPERS != h->number) continue;
      const hocket_gradient g = {(int64_t)k, w->tensors[k].grad};
      must_alone(hocket_gradients(w->engine, &g, 1, NULL, own), own);
    }
    pthread_barrier_wait(h->line);
    pthread_barrier_wait(h->line); /* a step has been taken */
  }
  return NULL;
}

static void make_gradients(world *w) {
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    for (int64_t k = 0; k < t->t.numel; k++) {
      put(t->t.grad_type, 0.02f * centred(&w->d), t->grad, k);
    }
    t->given = 1;
  }
}

static void several_threads(int overlap) {
  world w;
  helper helpers[HELPERS];
  pthread_t threads[HELPERS];
  pthread_barrier_t line;
  const hocket_step_options loose = {.max_norm = 1e9};
  const int steps = is_full_run() ? 25 : 10;
  open_world(&w, 41, total, NULL, overlap, 2);
  CHECK(pthread_barrier_init(&line, NULL, HELPERS + 1) == 0);
  for (int i = 0; i < HELPERS; i++) {
    helpers[i] = (helper){&w, &line, i, steps};
    CHECK(pthread_create(&threads[i], NULL, help, &helpers[i]) == 0);
  }
  for (int i = 0; i < steps; i++) {
    pthread_barrier_wait(&line);
    make_gradients(&w);
    pthread_barrier_wait(&line);
    pthread_barrier_wait(&line);
    take_step(&w, &loose, 1);
    pthread_barrier_wait(&line);
  }
  for (int i = 0; i < HELPERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  pthread_barrier_destroy(&line);
  check_all(&w);
  close_world(&w);
}

/* -- Calls of any kind from several threads ---------------------------------------------------- */

typedef struct {
  world *w;
  int number;
  atomic_bool *over;
  int64_t calls;
} onlooker;

/* Looks at the engine from beside, in every way that changes nothing. */
static void look(const onlooker *o, char *own) {
  world *w = o->w;
  char *text = NULL, hex[33];
  uint8_t held[MOST_TENSORS];
  float values[16];
  int64_t step = 0;
  must_alone(hocket_report(w->engine, &text, own), own);
  CHECK(text[0] == '{' && strstr(text, "\"last_steps\"") != NULL);
  hocket_free(text);
  must_alone(hocket_held(w->engine, held, own), own);
  for (size_t i = 0; i < w->n; i++) CHECK(held[i] <= 1);
  CHECK(hocket_step_number(w->engine) >= 0);
  const int code = hocket_timeline(w->engine, &text, own);
  CHECK((code == 0 && text[0] == '{') || (code == 1 && text == NULL));
  hocket_free(text);
  switch ((o->calls + o->number) % 8) {
    case 0:
      must_alone(hocket_read(w->engine, HOCKET_M, 0, 0, 16, values, own), own);
      break;
    case 1:
      must_alone(hocket_checksum(w->engine, hex, own), own);
      break;
    case 2:
      must_alone(hocket_get_tensor_step(w->engine, 1, &step, own), own);
      break;
    case 3:
      must_alone(hocket_sum_of_squares(w->engine, -1, NULL, NULL, own), own);
      break;
    case 4:
      must_alone(hocket_record(w->engine, o->calls / 8 % 2 == 0, own), own);
      break;
    case 5:
      must_alone(hocket_flush(w->engine, own), own);
      break;
    default:
      break;
  }
}

static void *look_on(void *argument) {
  onlooker *o = argument;
  char own[HOCKET_MESSAGE];
  while (!atomic_load(o->over)) {
    look(o, own);
    o->calls++;
  }
  return NULL;
}

/* Training beside other threads that make calls ends with the state of plain AdamW. */
static void onlookers(int overlap) {
  world w;
  atomic_bool over = false;
  onlooker looking[HELPERS];
  pthread_t threads[HELPERS];
  int64_t calls = 0;
  open_world(&w, 49, total, NULL, overlap, 2);
  for (int i = 0; i < HELPERS; i++) {
    looking[i] = (onlooker){.w = &w, .number = i, .over = &over};
    CHECK(pthread_create(&threads[i], NULL, look_on, &looking[i]) == 0);
  }
  iterate(&w, is_full_run() ? 20 : 8);
  MUST(hocket_drain(w.engine, -1, message));
  atomic_store(&over, true);
  for (int i = 0; i < HELPERS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    calls += looking[i].calls;
  }
  CHECK(calls >= HELPERS);
  check_all(&w);
  close_world(&w);
}

/* -- Waits ------------------------------------------------------------------------------------- */

/* Parameters whose step takes milliseconds. ThreadSanitizer makes it ten times as long. */
#ifdef __SANITIZE_THREAD__
enum { LONG_STEP = 300000 };
#elif defined(__SANITIZE_ADDRESS__)
enum { LONG_STEP = 1000000 };
#else
enum { LONG_STEP = 3000000 };
#endif

/* During a step of some milliseconds a wait with timeout 0 reports that the step runs, and one
 * with a timeout ends. On a busy machine the step may end before the first wait: then it is
 * repeated. */
static void waits(int overlap) {
  world w;
  int agains = 0;
  open_world(&w, 42, LONG_STEP, NULL, overlap, 1);
  MUST(hocket_wait_weights(w.engine, -1, NULL, 0, message)); /* nothing is pending */
  MUST(hocket_drain(w.engine, 0, message));
  for (int i = 0; i < 4 || (overlap != HOCKET_OVERLAP_NONE && agains == 0 && i < 100); i++) {
    int code;
    backward(&w);
    /* No work of the step before is pending. */
    MUST(hocket_wait_weights(w.engine, -1, NULL, 0, message));
    MUST(hocket_step(w.engine, NULL, NULL, NULL, message));
    for (size_t k = 0; k < w.n; k++) w.tensors[k].given = 0;
    if (i % 2 == 0) {
      while ((code = hocket_wait_weights(w.engine, 4, NULL, 0, message)) == HOCKET_AGAIN) {
        CHECK(strstr(message, "again") != NULL);
        agains++;
      }
      MUST(code);
    }
    while ((code = hocket_drain(w.engine, i == 1 ? 1 : 0, message)) == HOCKET_AGAIN) {
      CHECK(strstr(message, "again") != NULL);
      agains++;
    }
    MUST(code);
    CHECK(hocket_drain(w.engine, 0, NULL) == 0);
  }
  CHECK(overlap == HOCKET_OVERLAP_NONE ? agains == 0 : agains > 0);
  close_world(&w);
}

/* -- Ends -------------------------------------------------------------------------------------- */

/* Engines destroyed before the first gradient, between gradients and during a step. The tensors'
 * memory is freed right after, so the engine's threads must not use it any more. */
static void ends(int overlap) {
  for (int i = 0; i < 12; i++) {
    world w;
    open_world(&w, 43, LONG_STEP / 15, NULL, overlap, 2);
    if (i % 4 > 0) iterate(&w, 1 + i % 3);
    if (i % 4 > 1) {
      for (size_t k = w.n; k-- > (size_t)(i % 3);) hand_over(&w, k);
    }
    if (i % 4 > 2) MUST(hocket_step(w.engine, NULL, NULL, NULL, message));
    close_world(&w);
  }
}

static void two_engines(void) {
  world a, b;
  open_world(&a, 44, total, NULL, HOCKET_OVERLAP_BOTH, 2);
  open_world(&b, 45, total + 777, NULL, HOCKET_OVERLAP_FORWARD, 1);
  for (int i = 0; i < 6; i++) {
    forward(&a);
    for (size_t k = 4; k-- > 0;) hand_over(&a, k);
    forward(&b);
    backward(&b);
    for (size_t k = a.n; k-- > 4;) hand_over(&a, k);
    take_step(&b, NULL, 1);
    take_step(&a, NULL, 1);
  }
  check_all(&b);
  close_world(&b);
  iterate(&a, 2);
  check_all(&a);
  close_world(&a);
}

/* The checksum of the state after ten steps goes to `argument`. */
static void *train_alone(void *argument) {
  world w;
  char own[HOCKET_MESSAGE];
  open_model(&w, 50, total);
  hocket_tensor list[MOST_TENSORS];
  describe_tensors(&w, list);
  const hocket_options options = {
      .backend = "host", .overlap = HOCKET_OVERLAP_BOTH, .cpu_threads = 1};
  must_alone(hocket_create(NULL, list, w.n, w.groups, 2, &options, &w.engine, own), own);
  for (int i = 0; i < 10; i++) {
    make_gradients(&w);
    for (size_t k = w.n; k-- > 0;) {
      const hocket_gradient g = {(int64_t)k, w.tensors[k].grad};
      must_alone(hocket_gradients(w.engine, &g, 1, NULL, own), own);
    }
    must_alone(hocket_step(w.engine, NULL, NULL, NULL, own), own);
    must_alone(hocket_wait_weights(w.engine, -1, NULL, -1, own), own);
  }
  must_alone(hocket_checksum(w.engine, argument, own), own);
  close_world(&w);
  return NULL;
}

/* Four engines in four threads end with the state of one that trains alone. */
static void engines_side_by_side(void) {
  pthread_t threads[4];
  char alone[33], beside[4][33];
  train_alone(alone);
  for (int i = 0; i < 4; i++) {
    CHECK(pthread_create(&threads[i], NULL, train_alone, beside[i]) == 0);
  }
  for (int i = 0; i < 4; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(strcmp(beside[i], alone) == 0);
  }
}

/* In a forked child every call on the engine is refused, and the child can exit in any way. */
static void forked_child(int overlap) {
  world w;
  open_world(&w, 46, total, NULL, overlap, 2);
  iterate(&w, 2);
  backward(&w);
  for (int moment = 0; moment < 2; moment++) {
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      const hocket_gradient g = {0, w.tensors[0].handed};
      char hex[33];
      REFUSED(hocket_gradients(w.engine, &g, 1, NULL, message), 2, "forked child");
      REFUSED(hocket_step(w.engine, NULL, NULL, NULL, message), 2, "forked child");
      REFUSED(hocket_wait_weights(w.engine, 0, NULL, -1, message), 2, "forked child");
      REFUSED(hocket_drain(w.engine, -1, message), 2, "forked child");
      REFUSED(hocket_save(w.engine, "child.ck", message), 2, "forked child");
      REFUSED(hocket_checksum(w.engine, hex, message), 2, "forked child");
      REFUSED(hocket_discard(w.engine, -1, message), 2, "forked child");
      char *text = hex;
      REFUSED(hocket_report(w.engine, &text, message), 2, "forked child");
      REFUSED(hocket_timeline(w.engine, &text, message), 2, "forked child");
      CHECK(text == NULL);
      hocket_destroy(w.engine);
#ifndef __SANITIZE_THREAD__ /* it allows no new threads in a forked child */
      /* The child can create an engine of its own. */
      world own;
      open_world(&own, 47, total, NULL, HOCKET_OVERLAP_FORWARD, 1);
      iterate(&own, 2);
      check_all(&own);
      close_world(&own);
#endif
      _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (moment == 0) take_step(&w, NULL, 1);
  }
  iterate(&w, 2);
  check_all(&w);
  close_world(&w);
}

/* -- Report and timeline ----------------------------------------------------------------------- */

static void marked(world *w, int phase, int block, int end) {
  MUST(hocket_mark(w->engine, phase, block, end, NULL, message));
}

/* Prints report and timeline, one JSON text a line. */
static void words(int overlap) {
  world w;
  open_world(&w, 48, total, NULL, overlap, 2);
  char *text = NULL;
  REFUSED(hocket_timeline(w.engine, &text, message), 1, "nothing is recorded");
  iterate(&w, 2);
  MUST(hocket_record(w.engine, 1, message));
  for (int i = 0; i < 3; i++) {
    for (int b = 0; b < w.blocks; b++) {
      int code;
      while ((code = hocket_wait_weights(w.engine, b, NULL, 20, message)) == HOCKET_AGAIN) {
      }
      MUST(code);
      marked(&w, 0, b, 0);
      marked(&w, 0, b, 1);
    }
    for (int b = w.blocks; b-- > 0;) {
      marked(&w, 1, b, 0);
      for (size_t k = w.n; k-- > 0;) {
        if (w.tensors[k].t.block == b) hand_over(&w, k);
      }
      marked(&w, 1, b, 1);
    }
    take_step(&w, NULL, 1);
  }
  MUST(hocket_report(w.engine, &text, message));
  CHECK(text != NULL && strchr(text, '\n') == NULL);
  printf("report %d %s\n", overlap, text);
  hocket_free(text);
  MUST(hocket_timeline(w.engine, &text, message));
  CHECK(text != NULL && strchr(text, '\n') == NULL);
  printf("timeline %d %s\n", overlap, text);
  hocket_free(text);
  MUST(hocket_record(w.engine, 0, message));
  REFUSED(hocket_timeline(w.engine, &text, message), 1, "nothing is recorded");
  iterate(&w, 2);
  check_all(&w);
  close_world(&w);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  total = atoll(argv[1]);
  for (int overlap = HOCKET_OVERLAP_NONE; overlap <= HOCKET_OVERLAP_BOTH; overlap++) {
    several_threads(overlap);
    onlookers(overlap);
    waits(overlap);
    ends(overlap);
    forked_child(overlap);
    words(overlap);
  }
  two_engines();
  engines_side_by_side();
  puts("threads: all went well");
  return 0;
}
