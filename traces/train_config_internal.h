/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by the readers of training frameworks' configurations. */
#ifndef HK_TRACES_TRAIN_CONFIG_INTERNAL_H
#define HK_TRACES_TRAIN_CONFIG_INTERNAL_H

#include "traces/train_config.h"

/* A key of a document. */
typedef struct {
  const char *name;
  enum {
    HK_KEY_READ, /* by the reader, or without effect on the schedule */
    HK_KEY_NOTED /* a feature that hocket does not simulate: a note if it is on */
  } use;
  const char *note; /* what the feature does */
} hk_config_key;

/* Adds a sentence to the notes; those beyond the limit are lost. */
void hk_config_note(hk_train_config *config, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Removes members that are null or "auto". */
void hk_config_drop_auto(cJSON *object);

/* Compares the keys of `object` with keys[0..n) and notes the features that are on. `where`: the
 * object's path, "" for the document. An unknown key is HK_INPUT if `strict`, else a note. */
hk_status hk_config_check_keys(hk_train_config *config, const cJSON *object, const char *where,
                               const hk_config_key *keys, size_t n, bool strict, hk_error *err);

hk_status hk_config_read_deepspeed(cJSON *root, hk_train_config *config, hk_error *err);
hk_status hk_config_read_accelerate(cJSON *root, hk_train_config *config, hk_error *err);

#endif
