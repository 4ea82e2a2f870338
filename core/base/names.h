/* SPDX-License-Identifier: Apache-2.0 */
/* Names that people type: suggesting the nearest known one, and finding the files in share/. */
#ifndef HK_CORE_BASE_NAMES_H
#define HK_CORE_BASE_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"

/* The entry of names[0..n) nearest to `typed` by edit distance (insert, delete, substitute,
 * transpose; case ignored), or NULL if none is similar. */
const char *hk_nearest(const char *typed, const char *const *names, size_t n);

/* Whether the text is one of the words, after which there is NULL. */
bool hk_is_one_of(const char *text, const char *const *words);

/* "a, b, c", cut if it does not fit. Returns `buffer`. */
const char *hk_join(const char *const *names, size_t n, char *buffer, size_t size);

/* Sorted names of the presets of one kind ("models", "machines"), without ".json".
 * The caller frees with hk_names_free. */
hk_status hk_share_list(const char *kind, char ***names, size_t *n, hk_error *err);
void hk_names_free(char **names, size_t n);

/* Resolves NAME|FILE: an argument with a '/' or ending in ".json" is a path and returned as it is;
 * anything else is a preset of that kind. Unknown: HK_INPUT, suggests the nearest name and the
 * command that lists them. `path` holds at least 4096 bytes. */
hk_status hk_share_resolve(const char *kind, const char *name_or_file, char *path, size_t size,
                           hk_error *err);

/* The share folder in use: $HOCKET_SHARE, else beside the running program (build tree or install
 * tree), else where `cmake --install` put it. Never NULL. */
const char *hk_share_dir(void);

#endif
