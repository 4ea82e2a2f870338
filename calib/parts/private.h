/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by the files of this folder: the node as its parts describe it, before any efficiency. */
#ifndef HK_CALIB_PARTS_PRIVATE_H
#define HK_CALIB_PARTS_PRIVATE_H

#include "calib/parts/parts.h"

#define HK_TEXT_OF_PART 320

/* A figure of data sheets: what it is, and which sheet says so. */
typedef struct {
  double value;
  char text[HK_TEXT_OF_PART];
} hk_sheet_figure;

typedef struct {
  const char *gpu;    /* the part's full name */
  const char *vendor; /* of the GPU; NULL: NVIDIA, whose GPUs were measured */
  int gpus, cores, numa, channels;
  int sockets;            /* whose memory the node uses */
  int host_cores;         /* of the CPUs; 0: not stated */
  bool whole_board;       /* all GPUs of a board */
  bool part_of_host;      /* fewer cores than the CPUs have, and not all GPUs of a board: neighbours
                             use the same memory */
  double multiprocessors; /* of a GPU; 0: unknown */
  hk_sheet_figure peak, hbm, gpu_memory; /* of one GPU: flop/s, bytes/s, bytes */
  hk_sheet_figure link;                  /* of one GPU to the host, one direction */
  hk_sheet_figure nvlink;                /* one GPU, one direction; value 0: none */
  hk_sheet_figure dram;                  /* of the node */
  hk_sheet_figure network;               /* of the node; value 0: not stated */
  hk_sheet_figure cpu;                   /* value: cores */
  hk_sheet_figure memory;                /* of the node, bytes */
} hk_node_parts;

/* Looks the parts up and checks that they fit together. */
hk_status hk_parts_resolve(const hk_parts *parts, const hk_parts_request *request,
                           hk_node_parts *node, hk_parts_notes *notes, hk_error *err);

void hk_parts_note(hk_parts_notes *notes, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An entry of transfer.json without the figures of one machine. */
typedef struct {
  double value, error; /* error: relative */
  bool observed;       /* on some machine; otherwise a guess */
  char who[240];       /* "transferred from h200-node-16c (0.876), ..., their mean" */
} hk_transferred;

hk_status hk_transfer_read(const cJSON *entry, const char *without, hk_transferred *out,
                           hk_error *err);

#endif
