/* SPDX-License-Identifier: GPL-3.0-or-later */
/* CPU AdamW compared with host memory's bandwidth. Cases: streams of several mixes of reads and
 * writes, among them AdamW's own mix with almost no arithmetic (the ceiling); the kernels, in place
 * and out of place; the AVX-512 kernel with other prefetch distances and other stores; and the
 * sequence of passes that DeepSpeed makes. Each round runs all cases in a new random order, so that
 * a change of the machine's speed affects all of them. GB/s count the bytes that AdamW needs, not
 * the lines that plain stores out of place read before they overwrite them.
 *
 *   bench_adamw [--params N] [--threads 1,2,4] [--chunks 65536] [--rounds N] [--skew BYTES]
 *               [--only TEXT] [--json]
 *
 * Threads and memory are the engine's: pinned team, huge pages, first touch in parallel. As a
 * shared object, the same file runs its cases on the caller's memory: peers/adamw_peers.py.
 *
 * bench_adamw --only place compares the kernels in place and out of place, plain and streamed. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/sorted.h"
#include "core/base/units.h"
#include "engine/device/arena.h"
#include "engine/device/team.h"

/* The AVX-512 loop itself, compiled here with other tunings. The library's copy is unchanged. */
#define hk_kernels_avx512 hk_kernels_avx512_of_bench
#include "engine/adamw/adamw_avx512.c" /* NOLINT(bugprone-suspicious-include) */
#undef hk_kernels_avx512

#ifndef HK_X86
#error "bench_adamw measures x86-64 with AVX-512"
#endif

enum { MOST_LIST = 16, MOST_ROUNDS = 101, MOST_PASSES = 4 };

/* The arrays of a pass. */
typedef struct {
  float *p, *m, *v, *wide; /* wide: fp32 gradients, and the target of streams */
  adamw_into to;           /* out of place; NULL on the caller's memory */
  uint16_t *grad, *w;
  int64_t params, chunk;
  hk_adamw_step step;
} arrays;

static arrays mem;
static volatile float sink;

/* -- streams ----------------------------------------------------------------------------------- */

static TARGET void stream_read(int64_t at, int64_t n) {
  vec p = vec_set(0), m = p, v = p;
  for (int64_t i = at; i < at + n; i += LANES) {
    p += vec_load(mem.p + i);
    m += vec_load(mem.m + i);
    v += vec_load(mem.v + i);
  }
  sink = _mm512_reduce_add_ps(p + m + v);
}

static TARGET void stream_write(int64_t at, int64_t n) {
  const vec one = vec_set(1);
  for (int64_t i = at; i < at + n; i += LANES) vec_stream(mem.wide + i, one);
  _mm_sfence();
}

static TARGET void stream_copy(int64_t at, int64_t n) {
  for (int64_t i = at; i < at + n; i += LANES) vec_stream(mem.wide + i, vec_load(mem.p + i));
  _mm_sfence();
}

static TARGET void stream_triad(int64_t at, int64_t n) {
  const vec three = vec_set(3);
  for (int64_t i = at; i < at + n; i += LANES) {
    vec_stream(mem.wide + i, vec_load(mem.p + i) + three * vec_load(mem.m + i));
  }
  _mm_sfence();
}

/* AdamW's bytes: three fp32 streams in place, 2 bytes in, 2 bytes out. Values are multiplied by
 * one, which the compiler does not know. */
INLINE void mix(int ahead, bool stream_state, int64_t at, int64_t n) {
  static volatile float unknown = 1;
  const vec one = vec_set(unknown);
  float *const streams[] = {mem.p, mem.m, mem.v};
  for (int64_t i = at; i < at + n; i += BLOCK) {
    for (int s = 0; s < 3; s++) {
      if (ahead > 0) prefetch(streams[s] + i, ahead, 4 * BLOCK);
      for (int k = 0; k < BLOCK; k += LANES) {
        store(streams[s] + i + k, vec_load(streams[s] + i + k) * one, stream_state);
      }
    }
    if (ahead > 0) prefetch(mem.grad + i, ahead / 2, 2 * BLOCK);
    _mm512_stream_si512((void *)(mem.w + i), _mm512_loadu_si512(mem.grad + i));
  }
  _mm_sfence();
}

#define MIX(name, ...)                             \
  static TARGET void name(int64_t at, int64_t n) { \
    mix(__VA_ARGS__, at, n);                       \
  }
MIX(mix_plain, 0, false)
MIX(mix_ahead, 1024, false)
MIX(mix_stream, 1024, true)

/* -- kernels ----------------------------------------------------------------------------------- */

static hk_cpu_kernels scalar, avx2, avx512;

#define KERNEL(name)                                                                          \
  static void adamw_##name(int64_t at, int64_t n) {                                           \
    name.adamw(&mem.step, HK_GRAD_BF16, n, mem.p + at, mem.m + at, mem.v + at, mem.grad + at, \
               mem.w + at);                                                                   \
  }
KERNEL(scalar)
KERNEL(avx2)
KERNEL(avx512)

static void adamw_to_avx512(int64_t at, int64_t n) {
  avx512.adamw_to(&mem.step, HK_GRAD_BF16, n, mem.p + at, mem.m + at, mem.v + at, mem.to.p + at,
                  mem.to.m + at, mem.to.v + at, mem.grad + at, mem.w + at);
}

#define LOOP(name, target, ...)                                                                \
  static TARGET void name(int64_t at, int64_t n) {                                             \
    adamw_loop((hk_adamw_tuning){__VA_ARGS__}, &mem.step, HK_GRAD_BF16, n,                     \
               (adamw_from){mem.p + at, mem.m + at, mem.v + at},                               \
               (adamw_into){(target).p + at, (target).m + at, (target).v + at}, mem.grad + at, \
               mem.w + at);                                                                    \
  }
#define VARIANT(name, ...)      LOOP(name, mem, __VA_ARGS__)
#define OUT_OF_PLACE(name, ...) LOOP(name, mem.to, __VA_ARGS__)
VARIANT(ahead_0, 0, false, true)
VARIANT(ahead_256, 256, false, true)
VARIANT(ahead_512, 512, false, true)
VARIANT(ahead_1024, 1024, false, true)
VARIANT(ahead_2048, 2048, false, true)
VARIANT(ahead_4096, 4096, false, true)
VARIANT(plain_weights, 1024, false, false)
VARIANT(stream_state, 1024, true, true)
VARIANT(stream_state_0, 0, true, true)
VARIANT(in_place, 2048, false, true)
OUT_OF_PLACE(to_plain, 2048, false, true)
OUT_OF_PLACE(to_streamed, 2048, true, true)
OUT_OF_PLACE(to_plain_0, 0, false, true)
OUT_OF_PLACE(to_streamed_0, 0, true, true)

/* DeepSpeed's passes, each over all parameters: gradients to fp32, unscale, AdamW, weights to
 * bf16. */
static void up(int64_t at, int64_t n) {
  avx512.cast_up(HK_GRAD_BF16, n, mem.grad + at, mem.wide + at);
}
static void unscale_pass(int64_t at, int64_t n) {
  avx512.unscale(1, n, mem.wide + at);
}
static void adamw_wide(int64_t at, int64_t n) {
  avx512.adamw(&mem.step, HK_GRAD_FP32, n, mem.p + at, mem.m + at, mem.v + at, mem.wide + at, NULL);
}
static void down(int64_t at, int64_t n) {
  avx512.cast_down(n, mem.p + at, mem.w + at);
}

typedef void (*pass)(int64_t at, int64_t n);

typedef struct {
  const char *name;
  double bytes; /* a parameter */
  bool ceiling; /* has AdamW's mix */
  pass passes[MOST_PASSES];
} bench_case;

static const bench_case cases[] = {
    {"stream read", 12, false, {stream_read}},
    {"stream write", 4, false, {stream_write}},
    {"stream copy", 8, false, {stream_copy}},
    {"stream triad", 12, false, {stream_triad}},
    {"mix", 28, true, {mix_plain}},
    {"mix, prefetch 1024", 28, true, {mix_ahead}},
    {"mix, prefetch 1024, state streamed", 28, true, {mix_stream}},
    {"adamw scalar", 28, false, {adamw_scalar}},
    {"adamw avx2", 28, false, {adamw_avx2}},
    {"adamw avx512", 28, false, {adamw_avx512}},
    {"loop, prefetch 0", 28, false, {ahead_0}},
    {"loop, prefetch 256", 28, false, {ahead_256}},
    {"loop, prefetch 512", 28, false, {ahead_512}},
    {"loop, prefetch 1024", 28, false, {ahead_1024}},
    {"loop, prefetch 2048", 28, false, {ahead_2048}},
    {"loop, prefetch 4096", 28, false, {ahead_4096}},
    {"loop, prefetch 1024, weights not streamed", 28, false, {plain_weights}},
    {"loop, prefetch 1024, state streamed", 28, false, {stream_state}},
    {"loop, prefetch 0, state streamed", 28, false, {stream_state_0}},
    {"adamw avx512, out of place", 28, false, {adamw_to_avx512}},
    {"loop, in place", 28, false, {in_place}},
    {"loop, out of place, plain", 28, false, {to_plain}},
    {"loop, out of place, state streamed", 28, false, {to_streamed}},
    {"loop, out of place, plain, prefetch 0", 28, false, {to_plain_0}},
    {"loop, out of place, state streamed, prefetch 0", 28, false, {to_streamed_0}},
    {"deepspeed: up, unscale, adamw, down", 48, false, {up, unscale_pass, adamw_wide, down}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* -- measuring --------------------------------------------------------------------------------- */

typedef struct {
  int64_t params, threads[MOST_LIST], chunks[MOST_LIST], rounds, skew;
  int n_threads, n_chunks;
  const char *only;
  bool json;
} options;

/* Seconds of each round. */
typedef struct {
  double seconds[MOST_ROUNDS];
  double median, least, most;
} result;

static result results[MOST_LIST][MOST_LIST][CASES]; /* [chunks][threads][case] */

static void run_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const int64_t at = chunk * mem.chunk, rest = mem.params - at;
  (*(const pass *)arg)(at, rest < mem.chunk ? rest : mem.chunk);
}

static double seconds_of(hk_team *team, const bench_case *c) {
  const int64_t chunks = (mem.params + mem.chunk - 1) / mem.chunk;
  const hk_ns begin = hk_now();
  for (int i = 0; i < MOST_PASSES && c->passes[i] != NULL; i++) {
    pass work = c->passes[i];
    hk_team_run(team, chunks, run_chunk, &work);
  }
  return hk_s(hk_now() - begin);
}

static bool wanted(const options *o, int c) {
  return o->only == NULL || cases[c].ceiling || strstr(cases[c].name, o->only) != NULL;
}

static void shuffle(int *order, int n, uint64_t *seed) {
  for (int i = n - 1; i > 0; i--) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
    const int j = (int)((*seed >> 33) % (uint64_t)(i + 1)), swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
}

/* Round -1 only warms up. */
static void run_round(const options *o, hk_team **teams, int round, uint64_t *seed) {
  int order[MOST_LIST * MOST_LIST * CASES], n = 0;
  for (int i = 0; i < o->n_chunks * o->n_threads * CASES; i++) {
    if (wanted(o, i % CASES)) order[n++] = i;
  }
  shuffle(order, n, seed);
  for (int i = 0; i < n; i++) {
    const int c = order[i] % CASES, t = order[i] / CASES % o->n_threads;
    const int k = order[i] / CASES / o->n_threads;
    mem.chunk = o->chunks[k];
    const double seconds = seconds_of(teams[t], &cases[c]);
    if (round >= 0) results[k][t][c].seconds[round] = seconds;
  }
}

static void summarize(const options *o) {
  for (int i = 0; i < o->n_chunks * o->n_threads * CASES; i++) {
    result *r = &results[i / CASES / o->n_threads][i / CASES % o->n_threads][i % CASES];
    const int n = (int)o->rounds;
    sort_ascending(r->seconds, n);
    r->median = median_of_sorted(r->seconds, n);
    r->least = r->seconds[0];
    r->most = r->seconds[n - 1];
  }
}

/* -- reporting --------------------------------------------------------------------------------- */

static double gb_per_s(int c, const result *r) {
  return cases[c].bytes * (double)mem.params / r->median / 1e9;
}

/* The best mix with this number of threads; t < 0: with any. */
static double ceiling(const options *o, int t) {
  double best = 0;
  for (int k = 0; k < o->n_chunks; k++) {
    for (int i = 0; i < o->n_threads; i++) {
      for (int c = 0; c < CASES; c++) {
        if (!cases[c].ceiling || (t >= 0 && i != t)) continue;
        best = fmax(best, gb_per_s(c, &results[k][i][c]));
      }
    }
  }
  return best;
}

static void print_row(const options *o, int k, int t, int c, bool first) {
  const result *r = &results[k][t][c];
  const double n = (double)mem.params / 1e9, rate = gb_per_s(c, r);
  const double same = rate / ceiling(o, t), any = rate / ceiling(o, -1);
  if (o->json) {
    printf(
        "%s\n{\"case\":\"%s\",\"threads\":%lld,\"chunk\":%lld,\"params_per_s\":{\"median\":%.6g,"
        "\"min\":%.6g,\"max\":%.6g},\"bytes_per_s\":%.6g,\"of_ceiling_same_threads\":%.4f,"
        "\"of_ceiling\":%.4f}",
        first ? "" : ",", cases[c].name, (long long)o->threads[t], (long long)o->chunks[k],
        n / r->median * 1e9, n / r->most * 1e9, n / r->least * 1e9, rate * 1e9, same, any);
  } else {
    printf("| %s | %lld | %lld | %.2f | %.2f - %.2f | %.1f | %.2f | %.2f |\n", cases[c].name,
           (long long)o->threads[t], (long long)o->chunks[k], n / r->median, n / r->most,
           n / r->least, rate, same, any);
  }
}

static void print_all(const options *o) {
  if (o->json) {
    printf("{\"schema\":\"hocket.bench_adamw/1\",\"params\":%lld,\"rounds\":%lld,\"rows\":[",
           (long long)mem.params, (long long)o->rounds);
  } else {
    printf(
        "%lld parameters, median and extremes of %lld rounds; ceiling: the best mix with the same "
        "threads, with any.\n\n"
        "| what | threads | chunk | G params/s | min - max | GB/s | of ceiling | of any |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n",
        (long long)mem.params, (long long)o->rounds);
  }
  bool first = true;
  for (int c = 0; c < CASES; c++) {
    if (!wanted(o, c)) continue;
    for (int i = 0; i < o->n_chunks * o->n_threads; i++) {
      print_row(o, i / o->n_threads, i % o->n_threads, c, first);
      first = false;
    }
  }
  if (o->json) printf("\n]}\n");
}

/* -- setting up -------------------------------------------------------------------------------- */

static void must(hk_status status, const hk_error *err) {
  if (status == HK_OK) return;
  fprintf(stderr, "bench_adamw: %s\n", err->message);
  exit((int)status);
}

static void usage(const char *why, const char *what) {
  fprintf(stderr, "bench_adamw: %s %s\n", why, what);
  exit(HK_INPUT);
}

static int64_t number(const char *text, int64_t least, int64_t most) {
  char *end;
  const long long n = strtoll(text, &end, 10);
  if (end == text || (*end != '\0' && *end != ',') || n < least || n > most) {
    usage("not a number in range:", text);
  }
  return n;
}

static int numbers(const char *text, int64_t least, int64_t most, int64_t list[MOST_LIST]) {
  int n = 0;
  for (const char *at = text; at != NULL; at = strchr(at, ',')) {
    if (n > 0) at++;
    if (n == MOST_LIST) usage("too long a list:", text);
    list[n++] = number(at, least, most);
  }
  return n;
}

/* 1, 2, 4, ... and as many as there are. */
static void all_threads(options *o) {
  const int64_t all = sysconf(_SC_NPROCESSORS_ONLN);
  for (int64_t n = 1; n < all && o->n_threads < MOST_LIST - 1; n *= 2) {
    o->threads[o->n_threads++] = n;
  }
  o->threads[o->n_threads++] = all;
}

static options parse(int argc, char **argv) {
  static const struct option known[] = {{"params", 1, NULL, 'p'}, {"threads", 1, NULL, 't'},
                                        {"chunks", 1, NULL, 'c'}, {"rounds", 1, NULL, 'r'},
                                        {"skew", 1, NULL, 's'},   {"only", 1, NULL, 'o'},
                                        {"json", 0, NULL, 'j'},   {NULL, 0, NULL, 0}};
  options o = {.params = 1 << 27, .chunks = {65536}, .n_chunks = 1, .rounds = 7};
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (c == 'p')
      o.params = number(optarg, 64, INT64_C(1) << 36);
    else if (c == 't')
      o.n_threads = numbers(optarg, 1, 1024, o.threads);
    else if (c == 'c')
      o.n_chunks = numbers(optarg, 64, INT64_C(1) << 36, o.chunks);
    else if (c == 'r')
      o.rounds = number(optarg, 1, MOST_ROUNDS);
    else if (c == 's')
      o.skew = number(optarg, 0, 1 << 21);
    else if (c == 'o')
      o.only = optarg;
    else if (c == 'j')
      o.json = true;
    else
      exit(HK_INPUT);
  }
  if (o.n_threads == 0) all_threads(&o);
  if (optind < argc) usage("an option was expected, not", argv[optind]);
  /* Streams need whole cache lines of weights. */
  o.params = o.params / 64 * 64;
  o.skew = o.skew / 64 * 64;
  for (int k = 0; k < o.n_chunks; k++) o.chunks[k] = o.chunks[k] / 64 * 64;
  return o;
}

static void fill(int64_t at, int64_t n) {
  for (int64_t i = at; i < at + n; i++) {
    const uint32_t r = (uint32_t)i * 2654435761u;
    mem.p[i] = ((float)(r >> 8) - 0x1p23f) * 0x1p-28f;
    mem.m[i] = mem.p[i] * 0.01f;
    mem.v[i] = 1e-6f;
    mem.wide[i] = 0;
    mem.to.p[i] = mem.to.m[i] = mem.to.v[i] = 0;
    mem.grad[i] = (uint16_t)(r >> 31 << 15 | (115 + (r >> 20) % 8) << 7 | (r >> 8 & 127));
    mem.w[i] = 0;
  }
}

static void use(int64_t params, float *const wide[7], uint16_t *grad, uint16_t *w, int64_t chunk) {
  const hk_adamw hyper = {1e-4, 0.9, 0.999, 1e-8, 0.01};
  mem = (arrays){.p = wide[0],
                 .m = wide[1],
                 .v = wide[2],
                 .wide = wide[3],
                 .to = {wide[4], wide[5], wide[6]},
                 .grad = grad,
                 .w = w,
                 .params = params,
                 .chunk = chunk,
                 .step = hk_adamw_prepare(&hyper, 1000, 1)};
}

static void place(const options *o, hk_arena *arena, hk_team *team) {
  enum { WIDE = 7, ALL = 9 };
  hk_error err = {0};
  const hk_bytes wide = o->params * 4, narrow = o->params * 2, gap = o->skew + 2 * HK_MIB;
  must(hk_arena_open(WIDE * wide + (ALL - WIDE) * narrow + ALL * gap, team, NULL, arena, &err),
       &err);
  if (arena->note[0] != '\0') fprintf(stderr, "bench_adamw: %s\n", arena->note);
  float *arrays_wide[WIDE];
  void *taken[ALL];
  for (int i = 0; i < ALL; i++) {
    taken[i] = hk_arena_take(arena, i < WIDE ? wide : narrow, i == 0 ? 2 * HK_MIB : 64);
    if (i < WIDE) arrays_wide[i] = taken[i];
    if (o->skew > 0) (void)hk_arena_take(arena, o->skew, 64);
  }
  use(o->params, arrays_wide, taken[WIDE], taken[WIDE + 1], o->chunks[0]);
  seconds_of(team, &(bench_case){.passes = {fill}});
}

static void find_kernels(void) {
  size_t n;
  const hk_cpu_kernels *list = hk_cpu_kernels_list(&n);
  if (n < 3 || !list[2].supported) {
    fprintf(stderr, "bench_adamw: this processor has no AVX-512\n");
    exit(HK_ENVIRONMENT);
  }
  scalar = list[0];
  avx2 = list[1];
  avx512 = list[2];
}

static hk_team *open_team(int64_t threads) {
  const hk_team_options wish = {.threads = (int)threads, .pin = true};
  hk_team *team = NULL;
  hk_error err = {0};
  must(hk_team_open(&wish, &team, &err), &err);
  const char *note = hk_team_note(team);
  if (note[0] != '\0') fprintf(stderr, "bench_adamw: %s\n", note);
  return team;
}

/* -- on the caller's memory, for peers/adamw_peers.py ------------------------------------------ */

static hk_team *guest_team;

/* Must be called before the calling thread is pinned. */
void hk_bench_open(int threads) {
  find_kernels();
  guest_team = open_team(threads);
}

/* Pins the calling thread, which is one of the team. */
void hk_bench_join(void) {
  hk_team_join(guest_team);
}

/* Runs a case once over arrays of `params` elements, a multiple of 64, that begin cache lines.
 * False: no case has that name, or it needs arrays to write to out of place. */
bool hk_bench_run(const char *name, int64_t params, float *p, float *m, float *v, float *wide,
                  uint16_t *grad, uint16_t *w) {
  for (int c = 0; c < CASES; c++) {
    if (strcmp(cases[c].name, name) != 0 || strstr(name, "out of place") != NULL) continue;
    use(params, (float *[]){p, m, v, wide, NULL, NULL, NULL}, grad, w, 65536);
    seconds_of(guest_team, &cases[c]);
    return true;
  }
  return false;
}

int main(int argc, char **argv) {
  const options o = parse(argc, argv);
  find_kernels();
  hk_team *teams[MOST_LIST] = {NULL};
  int largest = 0;
  for (int t = 0; t < o.n_threads; t++) {
    teams[t] = open_team(o.threads[t]);
    if (o.threads[t] > o.threads[largest]) largest = t;
  }
  hk_team_join(teams[largest]);
  hk_arena arena;
  place(&o, &arena, teams[largest]);
  uint64_t seed = 1;
  for (int round = -1; round < (int)o.rounds; round++) run_round(&o, teams, round, &seed);
  summarize(&o);
  print_all(&o);
  hk_arena_close(&arena);
  for (int t = 0; t < o.n_threads; t++) hk_team_close(teams[t]);
  return 0;
}
