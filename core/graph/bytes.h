/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes a parameter: what AdamW on bf16 weights and gradients with fp32 state holds and moves. All
 * sizes and all traffic in hocket that are in proportion to parameters are multiples of these.
 *
 * State is 12 bytes: master weight, momentum and variance, 4 bytes each. A fused update reads it
 * and a gradient of 2, and writes it and a weight of 2: 14 + 14 = 28.
 *
 * Example: a subgroup of 100 M parameters on route `staged` takes 1.2 GB to the GPU and 1.2 GB
 * back. At 50 GB/s each way, both at once, a stream of such subgroups needs 24 ms for each. On
 * route `cpu` it moves 2.8 GB of host memory: 19 ms at 150 GB/s, and its new weights, 0.2 GB, go up
 * in 4 ms. docs/architecture.md has the table by route.
 *
 * Models with other types (hk_tensor.weight_type, grad_type) have sizes of their own for weights
 * and gradients: hk_model_weight_bytes, hk_model_grad_bytes. */
#ifndef HK_CORE_GRAPH_BYTES_H
#define HK_CORE_GRAPH_BYTES_H

/* Held, or copied in one direction. */
#define HK_BYTES_BF16  2                   /* a weight, or a gradient */
#define HK_BYTES_FP32  4                   /* one part of the state, or a gradient in fp32 */
#define HK_BYTES_STATE (3 * HK_BYTES_FP32) /* 12 */

/* Copied over the link in both directions together, for state that a GPU updates for the host. */
#define HK_BYTES_ROUND_TRIP (2 * HK_BYTES_STATE) /* 24 */

/* Memory traffic of a kernel, read plus written: host memory for CPU kernels, GPU memory for GPU
 * kernels. */
/* 28: bf16 gradient in, weight out. */
#define HK_BYTES_ADAMW (2 * (HK_BYTES_STATE + HK_BYTES_BF16))
#define HK_BYTES_ADAMW_FP32 \
  (2 * HK_BYTES_STATE + HK_BYTES_FP32) /* 28: fp32 gradient in, no bf16 weight */
/* State 8bit and 8bit+split, bf16 gradient: codes and windows in and out, weight out. */
#define HK_BYTES_ADAMW_8BIT       (16 + 1.0 / 32)
#define HK_BYTES_ADAMW_8BIT_SPLIT (14 + 1.0 / 32)
#define HK_BYTES_UNSCALE          (2 * HK_BYTES_FP32)             /* 8: an fp32 gradient in place */
#define HK_BYTES_CAST             (HK_BYTES_FP32 + HK_BYTES_BF16) /* 6: fp32 to bf16, or back */
/* 12: torch's clip_grad_norm_ reads fp32 gradients, and reads and writes them. */
#define HK_BYTES_CLIP (3 * HK_BYTES_FP32)
/* 36: the bf16 gradient is first read, written as fp32, and read again. */
#define HK_BYTES_ADAMW_WIDENED (HK_BYTES_ADAMW + 2 * HK_BYTES_FP32)
/* 12: gradients are copied into a bucket, divided by the number of ranks, and packed. */
#define HK_BYTES_GRAD_BUCKET (3 * 2 * HK_BYTES_BF16)

#endif
