/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Kinds of models that hocket does not count: the Python package does, if it is installed. */
#ifndef HK_CLI_DESCRIBE_H
#define HK_CLI_DESCRIBE_H

#include "core/model/model.h"

/* Call it when hk_model_load has refused `path` and left *err. If `path` is the config.json, or its
 * folder, of a kind that hocket does not know, it runs
 *   python3 -m hocket describe --seq N --checkpoint-activations yes|no -- PATH
 * with N = `seq` (0: the default) and loads the document that this prints. If that fails, or takes
 * longer than `seconds`, the reason comes before the message of *err. */
hk_status hk_describe(const char *path, int64_t seq, bool checkpoint, double seconds,
                      hk_model *model, hk_error *err);

#endif
