/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The few things of SimGrid's C++ interface (S4U) that the referee needs, as C. SimGrid's own C
 * interface does not reach them: it cannot create links or hosts but from an XML file, has no task
 * graphs, and no capacity that depends on the traffic.
 *
 * An engine exists once a process. Whatever goes wrong inside SimGrid ends the process. */
#ifndef HK_TESTS_SIMGRID_S4U_H
#define HK_TESTS_SIMGRID_S4U_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hk_s4u hk_s4u;

/* Whose traffic a flow is, for links that have less for a mixture. */
typedef enum { HK_S4U_NEUTRAL, HK_S4U_LEFT, HK_S4U_RIGHT, HK_S4U_SIDES } hk_s4u_side;

/* What flows of one sort are: between two hosts of their own, over these links. */
typedef struct {
  double cap;           /* bytes a second when alone */
  double weight;        /* rates of flows that share grow in this proportion */
  int32_t access_point; /* or -1 */
  int32_t level;        /* which of its rates */
  const int32_t *links; /* those that its bytes cross, as often as they cross them */
  int32_t n_links;
  hk_s4u_side side;
} hk_s4u_sort;

/* With a host to wait on, for up to `lanes` operations at once, and no link yet. */
hk_s4u *hk_s4u_create(int32_t lanes);

/* Each returns the number to name the new thing by. */
int32_t hk_s4u_link(hk_s4u *s, double bytes_per_s, double mixed_bytes_per_s);
int32_t hk_s4u_access_point(hk_s4u *s, const double *bytes_per_s, int32_t levels);
int32_t hk_s4u_add_sort(hk_s4u *s, const hk_s4u_sort *sort);
void hk_s4u_seal(hk_s4u *s); /* the platform is complete */

/* An operation of the next run: waits, then, unless `sort` is -1, moves `bytes`. */
int32_t hk_s4u_operation(hk_s4u *s, double wait_ns, int32_t sort, double bytes);
void hk_s4u_after(hk_s4u *s, int32_t first, int32_t then);

/* Runs them all and forgets them. Returns the seconds from the start of this run to its end. */
double hk_s4u_run(hk_s4u *s, int64_t *activities);

#ifdef __cplusplus
}
#endif

#endif
