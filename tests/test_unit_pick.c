/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The queue of the simulator's and the engine's lanes against a linear search, in random order. */
#include <stdlib.h>

#include "core/graph/pick.h"
#include "tests/fixture.h"
#include "tests/random.h"

#define OPS 200

/* A graph of two lanes whose operations have one of `priorities` priorities. */
static hk_graph graph_of(random_stream *r, int priorities) {
  hk_graph graph = {.ranks = 1};
  hk_error err = {0};
  assert_int_equal(hk_graph_lane(&graph, HK_LANE_CPU, 0, &err), 0);
  assert_int_equal(hk_graph_lane(&graph, HK_LANE_UP, 0, &err), 1);
  for (int i = 0; i < 2 * OPS; i++) {
    const hk_op op = {.kind = HK_OP_ADAMW_CPU,
                      .lane = i % 2,
                      .priority = (int32_t)pick(r, 0, priorities - 1) - 1};
    assert_int_equal(hk_graph_add(&graph, &op, NULL, 0, &err), i);
  }
  return graph;
}

/* Operations arrive and are picked in random turns. The picked one has the least priority of those
 * that wait, and of these the least id. */
static void takes_the_least(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    random_stream r = {seed};
    hk_error err = {0};
    hk_graph graph = graph_of(&r, 1 + (int)(seed % 7));
    hk_picker picker;
    must(hk_picker_open(&picker, &graph, 1, &err), &err);
    assert_int_equal(picker.room, OPS);
    assert_int_equal(hk_picker_pop(&picker, &graph), -1);
    bool waits[2 * OPS] = {false}, came[2 * OPS] = {false};
    int pushed = 0, popped = 0;
    while (popped < OPS) {
      if (pushed < OPS && (popped == pushed || pick(&r, 0, 2) > 0)) {
        int32_t op = 0;
        do op = (int32_t)(2 * pick(&r, 0, OPS - 1) + 1);
        while (came[op]);
        came[op] = waits[op] = true;
        hk_picker_push(&picker, &graph, op);
        pushed++;
        continue;
      }
      int32_t least = -1;
      for (int32_t i = 0; i < 2 * OPS; i++)
        if (waits[i] && (least < 0 || graph.ops[i].priority < graph.ops[least].priority)) least = i;
      assert_int_equal(hk_picker_peek(&picker), least);
      assert_int_equal(hk_picker_pop(&picker, &graph), least);
      waits[least] = false;
      popped++;
    }
    assert_int_equal(hk_picker_peek(&picker), -1);
    hk_picker_close(&picker);
    hk_graph_free(&graph);
  }
}

/* With equal priorities the least id goes first, whatever the order of arrival. */
static void ties_go_by_id(void **state) {
  (void)state;
  random_stream r = {3};
  hk_error err = {0};
  hk_graph graph = graph_of(&r, 1);
  hk_picker picker;
  must(hk_picker_open(&picker, &graph, 0, &err), &err);
  for (int32_t op = 2 * OPS - 2; op >= 0; op -= 2) hk_picker_push(&picker, &graph, op);
  for (int32_t op = 0; op < 2 * OPS; op += 2) assert_int_equal(hk_picker_pop(&picker, &graph), op);
  hk_picker_close(&picker);
  hk_picker_close(&picker);
  hk_graph_free(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(takes_the_least),
      cmocka_unit_test(ties_go_by_id),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
