/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by the readers of training frameworks' configurations. */
#ifndef HK_TRACES_TRAIN_CONFIG_INTERNAL_H
#define HK_TRACES_TRAIN_CONFIG_INTERNAL_H

#include "traces/train_config.h"

/* A key of a document whose feature hocket does not simulate. */
typedef struct {
  const char *name, *note; /* the note says what is simulated instead */
} hk_config_feature;

/* Adds a sentence to the notes; those beyond the limit are lost. */
void hk_config_note(hk_train_config *config, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Removes members that are null or "auto". */
void hk_config_drop_auto(cJSON *object);

/* Looks the keys of `object` up in `keys`, words that the reader reads or that have no effect on
 * the schedule, and in `features`, and notes those of the latter that are on. `features` ends with
 * a NULL, or is NULL. `where`: the object's path, "" for the document. An unknown key is HK_INPUT
 * if `strict`, else a note. */
hk_status hk_config_check_keys(hk_train_config *config, const cJSON *object, const char *where,
                               const char *keys, const hk_config_feature *features, bool strict,
                               hk_error *err);

hk_status hk_config_read_deepspeed(cJSON *root, hk_train_config *config, hk_error *err);
hk_status hk_config_read_accelerate(cJSON *root, hk_train_config *config, hk_error *err);

#endif
