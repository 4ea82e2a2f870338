/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Each format of state on each route of a GPU, and beside forward and backward, gives the bits of
 * plain AdamW, with pieces longer than a slab and copies of weights that do not share a launch.
 * Skipped (77) without a CUDA device; `--backend host` runs it anywhere. */
#include "tests/fixture_training.h"

enum { LAYERS = 8, LAYER = 300000 };

static const hk_backend_ops *backend;

/* -- Updates alone ----------------------------------------------------------------------------- */

static hk_plan plan_of_route(hk_format format, hk_route route) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = model_of(
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 512, "
      "\"intermediate_size\": 512, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
      "\"vocab_size\": 1024, \"max_position_embeddings\": 64}",
      "wide");
  must(hk_plan_create(&model, &one_gpu, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 1400011, &plan, &err),
       &err);
  hk_model_free(&model);
  plan.buffers = 2;
  plan.piece_numel = 1250003;
  plan.cpu_threads = 2;
  plan.optimizer = optimizer_of(format);
  for (size_t s = 0; s < plan.n_subgroups; s++) plan.subgroups[s].route = route;
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

/* Two steps of the same model for each format and route. *hex: the checksum of its state. */
static void assert_route_exact(hk_format format, hk_route route, hk_grad_type type, char hex[33]) {
  hk_error err = {0};
  hk_step_report report;
  random_stream r = {31 + (uint64_t)type};
  hk_plan plan = plan_of_route(format, route);
  const hk_engine_options options = {.backend = backend, .no_pin_threads = true, .seed = 7};
  plain_adamw plain = plain_start(&r, numel_of(&plan), type);
  plain_in_format_of(&plain, &plan);
  plain.seed = options.seed;
  hk_engine *engine = engine_like(&plan, &plain, &options);
  for (int step = 0; step < 2; step++) {
    plain_gradients(&plain, &r);
    give_gradients(engine, &plain, &r);
    plain_step(&plain, 1);
    must(take_step(engine, &plain, 1, &report, &err), &err);
    assert_same_bits(engine, &plain);
  }
  must(hk_engine_checksum(engine, hex, &err), &err);
  end_engine(engine);
  plain_stop(&plain);
  hk_plan_free(&plan);
}

/* All routes have one checksum, and a split format has that of the other. */
static void routes_are_plain_adamw(hk_grad_type type) {
  char first[3][33] = {"", "", ""}, hex[33];
  for (int format = 0; format < HK_FORMATS; format++) {
    char *same =
        first[hk_format_is_coded((hk_format)format) ? 2 : hk_format_is_short((hk_format)format)];
    for (int route = 0; route < HK_ROUTE_COUNT; route++) {
      assert_route_exact((hk_format)format, (hk_route)route, type, hex);
      if (same[0] == '\0') memcpy(same, hex, sizeof hex);
      assert_string_equal(hex, same);
    }
  }
  assert_string_not_equal(first[0], first[1]);
  assert_string_not_equal(first[1], first[2]);
}

static void routes_with_bf16_gradients(void **unused) {
  (void)unused;
  routes_are_plain_adamw(HK_GRAD_BF16);
}

static void routes_with_fp16_gradients(void **unused) {
  (void)unused;
  routes_are_plain_adamw(HK_GRAD_FP16);
}

/* -- Beside forward and backward --------------------------------------------------------------- */

typedef enum { MIXED, AHEAD, EARLY, HELD_STAGED } way;

/* Weights and gradients in host memory that the device accesses. */
static _Alignas(4096) uint16_t shared[2 * LAYERS * LAYER];

static void make_layers(world *w) {
  w->n = LAYERS;
  w->blocks = LAYERS;
  w->n_groups = 1;
  w->groups[0] = (hk_adamw){.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    make_tensor(w, i, (int)i, LAYER);
    t->param.weight_type = t->param.grad_type = HK_GRAD_BF16;
    t->param.weight = shared + i * LAYER;
    for (int64_t k = 0; k < LAYER; k++) {
      narrow(HK_GRAD_BF16, t->p[k], t->param.weight, k);
      t->p[k] = widen(HK_GRAD_BF16, t->param.weight, k);
    }
    w->params[i] = t->param;
  }
}

static void open_layers(world *w, way how) {
  hk_error err = {0};
  hk_plan plan = {0};
  make_layers(w);
  must(hk_default_plan(w->params, w->n, 2, &plan, &err), &err);
  plan.optimizer = optimizer_of(w->format);
  plan.overlap = how == MIXED ? HK_OVERLAP_FORWARD : HK_OVERLAP_BOTH;
  if (how == HELD_STAGED) plan.piece_numel = LAYER / 3 + 1;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    hk_plan_subgroup *sub = &plan.subgroups[s];
    if (how == MIXED) sub->route = (hk_route)(s % HK_ROUTE_COUNT);
    sub->ahead = how != MIXED;
    sub->early = how == EARLY || how == HELD_STAGED;
    sub->held_staged = how == HELD_STAGED;
  }
  const hk_engine_options options = {.backend = backend, .no_pin_threads = true, .seed = w->seed};
  must(hk_engine_create(&plan, w->params, w->n, w->groups, 1, &options, &w->engine, &err), &err);
  hk_plan_free(&plan);
  hk_backend *b = w->engine->backend;
  must(b->ops->host_register(b, shared, (hk_bytes)sizeof shared, &err), &err);
  must(hk_engine_masters(w->engine, -1, NULL, &err), &err);
}

static void close_layers(world *w) {
  w->engine->backend->ops->host_unregister(w->engine->backend, shared);
  unmake(w);
}

/* One iteration. Returns how many elements' updates ran ahead and were kept. */
static int64_t iterate(world *w, double max_norm, bool finite) {
  hk_error err = {0};
  hk_step_report report;
  bool there = false;
  for (int b = 0; b < w->blocks; b++) {
    must(hk_engine_wait_weights(w->engine, b, NULL, -1, &there, &err), &err);
  }
  for (size_t i = w->n; i-- > 0;) {
    tensor *t = &w->tensors[i];
    uint16_t *gradient = shared + (LAYERS + i) * LAYER;
    for (int64_t k = 0; k < LAYER; k++) {
      narrow(HK_GRAD_BF16, (float)(uniform(&w->r) - 0.5) * 0.01f, gradient, k);
    }
    if (!finite && i == 0) gradient[LAYER / 2] = 0x7f80; /* an infinity, handed over last */
    memcpy(t->grad, gradient, 2 * LAYER);
    t->given = 1;
    const hk_gradient given = {(int64_t)i, gradient};
    must(hk_engine_gradients(w->engine, &given, 1, NULL, &err), &err);
  }
  const hk_step_options how = {.max_norm = max_norm};
  const double squares = plain_squares(w);
  must(hk_engine_step(w->engine, &how, &report, NULL, &err), &err);
  assert_int_equal(report.skipped, !finite);
  if (finite) plain_update(w, hk_grad_scale(squares, max_norm, 1));
  for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
  return report.ahead;
}

static void check(world *w) {
  hk_error err = {0};
  bool there = false;
  static float got[LAYER];
  static const char *const names[] = {"p", "m", "v"};
  must(hk_engine_drain(w->engine, -1, &there, &err), &err);
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    const float *expected[] = {t->p, t->m, t->v};
    assert_equal_bits(t->param.weight, t->expected, 2, LAYER, "w");
    for (int part = 0; part < 3; part++) {
      must(hk_engine_read(w->engine, (hk_state_part)part, (int64_t)i * LAYER, LAYER, got, &err),
           &err);
      assert_equal_bits(got, expected[part], 4, LAYER, names[part]);
    }
  }
}

/* Updates that run ahead and are kept, discarded by an infinity, and redone because of clipping. */
static void training_is_plain_adamw(way how) {
  for (int format = 0; format < HK_FORMATS; format++) {
    world w = {.r = {3}, .format = (hk_format)format, .seed = 11};
    int64_t ahead = 0;
    open_layers(&w, how);
    for (int i = 0; i < 4; i++) ahead += iterate(&w, 1e9, true);
    check(&w);
    iterate(&w, 1e9, false);
    ahead += iterate(&w, 1e9, true);
    for (int i = 0; i < 2; i++) iterate(&w, 1e-3, true);
    check(&w);
    for (int i = 0; i < 2; i++) iterate(&w, 1e9, true);
    check(&w);
    assert_int_equal(ahead > 0, how != MIXED);
    close_layers(&w);
  }
}

static void every_route_beside_forward(void **unused) {
  (void)unused;
  training_is_plain_adamw(MIXED);
}

static void ahead_of_the_norm(void **unused) {
  (void)unused;
  training_is_plain_adamw(AHEAD);
}

static void ahead_with_early_weights(void **unused) {
  (void)unused;
  training_is_plain_adamw(EARLY);
}

static void staged_when_held(void **unused) {
  (void)unused;
  training_is_plain_adamw(HELD_STAGED);
}

int main(int argc, char **argv) {
  hk_error err = {0};
  int devices = 0;
  const bool named = argc == 3 && strcmp(argv[1], "--backend") == 0;
  must(hk_backend_find(named ? argv[2] : "cuda", &backend, &err), &err);
  if (backend->count(&devices, &err) != HK_OK || devices == 0) {
    fprintf(stderr, "skipped: %s\n", err.message);
    return 77;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(routes_with_bf16_gradients), cmocka_unit_test(routes_with_fp16_gradients),
      cmocka_unit_test(every_route_beside_forward), cmocka_unit_test(ahead_of_the_norm),
      cmocka_unit_test(ahead_with_early_weights),   cmocka_unit_test(staged_when_held),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
