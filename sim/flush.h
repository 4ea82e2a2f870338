/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans whose gradients wait on the GPU, for their reduction or for an asynchronous flush, until
 * they no longer fit. */
#ifndef HK_SIM_FLUSH_H
#define HK_SIM_FLUSH_H

#include "sim/forecast.h"

/* If *forecast does not fit because gradients wait on the GPU: replaces it by the faster of these
 * plans that fit: the most flush_blocks, and with several ranks reduce_first, alone or with the
 * most flush_blocks. If none fits: by the plan with a blocking flush, if that one fits. `may_wait`:
 * backward may wait for flushes; if not, only reduce_first is tried. With an overlap of updates
 * backward never waits. */
hk_status hk_flush_fit(hk_forecast *forecast, bool may_wait, const hk_machine *machine,
                       hk_error *err);
/* The same with the first plan found that fits: for whoever asks only whether one does. */
hk_status hk_flush_fit_any(hk_forecast *forecast, bool may_wait, const hk_machine *machine,
                           hk_error *err);

#endif
