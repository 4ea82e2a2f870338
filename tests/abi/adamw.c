/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Updates of state that the caller keeps (hocket_adamw): the bits of plain AdamW for each type of
 * gradients, size and number of threads; wrong arguments are refused and change nothing.
 *
 *   adamw */
#include "world.h"

static const hocket_group group = {1e-2, 0.9, 0.999, 1e-8, 0.1};

static void same_bits(int64_t numel, int grad_type, int32_t threads) {
  world w = {.d = {(uint64_t)numel * 2 + 1}};
  open_tensor(&w, 0, numel, 0, HOCKET_FP32, grad_type);
  tensor *t = &w.tensors[0];
  w.n = 1;
  float *p = t->t.weight, *m = room(numel), *v = room(numel);
  const hocket_state state = {numel, grad_type, p, m, v, t->grad};
  for (int64_t step = 1; step <= 3; step++) {
    for (int64_t k = 0; k < numel; k++) put(grad_type, 0.02f * centred(&w.d), t->grad, k);
    MUST(hocket_adamw(&group, step, threads, &state, message));
    plain_adamw(t, &group, 1);
    const size_t bytes = 4 * (size_t)numel;
    CHECK(memcmp(p, t->p, bytes) == 0 && memcmp(m, t->m, bytes) == 0 &&
          memcmp(v, t->v, bytes) == 0);
  }
  free(m);
  free(v);
  close_world(&w);
}

static void refuses(void) {
  float x[4] = {1, 0, 0, 1};
  const hocket_state right = {1, HOCKET_FP32, x, x + 1, x + 2, x + 3};
  hocket_state wrong = right;
  hocket_group bad = group;
  REFUSED(hocket_adamw(NULL, 1, 1, &right, message), 2, "group");
  bad.beta1 = 1;
  REFUSED(hocket_adamw(&bad, 1, 1, &right, message), 2, "beta1 1");
  REFUSED(hocket_adamw(&group, 1, 1, NULL, message), 2, "state");
  REFUSED(hocket_adamw(&group, 0, 1, &right, message), 2, "step 0");
  REFUSED(hocket_adamw(&group, 1, -1, &right, message), 2, "threads");
  wrong.numel = -1;
  REFUSED(hocket_adamw(&group, 1, 1, &wrong, message), 2, "elements");
  wrong = right, wrong.grad_type = 3;
  REFUSED(hocket_adamw(&group, 1, 1, &wrong, message), 2, "type 3");
  wrong = right, wrong.p = NULL;
  REFUSED(hocket_adamw(&group, 1, 1, &wrong, message), 2, "master weights");
  wrong = right, wrong.m = NULL;
  REFUSED(hocket_adamw(&group, 1, 1, &wrong, message), 2, "momentum");
  wrong = right, wrong.v = NULL;
  REFUSED(hocket_adamw(&group, 1, 1, &wrong, message), 2, "variance");
  wrong = right, wrong.gradient = NULL;
  REFUSED(hocket_adamw(&group, 1, 1, &wrong, message), 2, "gradient");
  wrong = right, wrong.numel = 0;
  MUST(hocket_adamw(&group, 1, 0, &wrong, message));
  CHECK(x[0] == 1 && x[1] == 0 && x[2] == 0 && x[3] == 1);
}

int main(void) {
  const int64_t sizes[] = {1, 4099, 300001};
  for (int i = 0; i < 3; i++) {
    for (int type = HOCKET_BF16; type <= HOCKET_FP32; type++) same_bits(sizes[i], type, 3);
    same_bits(sizes[i], HOCKET_FP32, 0);
  }
  refuses();
  puts("all went well");
  return 0;
}
