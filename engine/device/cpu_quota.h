/* SPDX-License-Identifier: Apache-2.0 */
/* How much processor time this process may have, by its control groups' figures. */
#ifndef HK_ENGINE_DEVICE_CPU_QUOTA_H
#define HK_ENGINE_DEVICE_CPU_QUOTA_H

/* The smallest CPU quota of this process's control group (version 1 or 2) and its ancestors, in
 * CPUs, rounded up; 0: there is none. `root` is put before /proc and /sys: "", except in tests. */
int hk_cpu_quota(const char *root);

#endif
