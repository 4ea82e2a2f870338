/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend's device memory: a list of blocks, allocated first fit. Engines and probes
 * allocate few blocks, so searching the list is fast enough. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/device/host_device.h"

#define ALIGNMENT 512

struct hk_host_block {
  hk_bytes at, bytes;
  bool used;
  hk_host_block *next;
};

hk_status hk_host_heap_open(hk_bytes bytes, hk_host_heap *heap, hk_error *err) {
  *heap = (hk_host_heap){0};
  const hk_bytes whole = bytes / ALIGNMENT * ALIGNMENT;
  if (whole < ALIGNMENT) {
    return hk_fail(err, HK_INPUT, "a host device of %lld bytes was asked for; it needs %d",
                   (long long)bytes, ALIGNMENT);
  }
  hk_host_block *all = malloc(sizeof *all);
  if (all == NULL) return hk_fail_memory(err, sizeof *all, "the host device's memory");
  /* Pages are allocated when they are touched, so an unused part of a device costs nothing. */
  void *base = mmap(NULL, (size_t)whole, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    free(all);
    char size[16];
    return hk_fail(err, HK_ENVIRONMENT, "%s for the host device's memory cannot be mapped: %s",
                   hk_format_bytes(whole, size, sizeof size), strerror(errno));
  }
  *all = (hk_host_block){.bytes = whole};
  *heap = (hk_host_heap){.base = base, .bytes = whole, .free = whole, .blocks = all};
  return HK_OK;
}

void hk_host_heap_close(hk_host_heap *heap) {
  while (heap->blocks != NULL) {
    hk_host_block *next = heap->blocks->next;
    free(heap->blocks);
    heap->blocks = next;
  }
  if (heap->base != NULL) munmap(heap->base, (size_t)heap->bytes);
  *heap = (hk_host_heap){0};
}

static hk_status fail_full(const hk_host_heap *heap, hk_bytes bytes, hk_error *err) {
  hk_bytes largest = 0;
  for (const hk_host_block *b = heap->blocks; b != NULL; b = b->next) {
    if (!b->used && b->bytes > largest) largest = b->bytes;
  }
  char wish[16], room[16], piece[16];
  return hk_fail(
      err, HK_ENVIRONMENT, "out of device memory: %s asked for, %s free (%s in one piece)",
      hk_format_bytes(bytes, wish, sizeof wish), hk_format_bytes(heap->free, room, sizeof room),
      hk_format_bytes(largest, piece, sizeof piece));
}

hk_status hk_host_heap_take(hk_host_heap *heap, hk_bytes bytes, void **out, hk_error *err) {
  if (bytes > heap->bytes) return fail_full(heap, bytes, err);
  const hk_bytes whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  hk_host_block *block = heap->blocks;
  while (block != NULL && (block->used || block->bytes < whole)) block = block->next;
  if (block == NULL) return fail_full(heap, bytes, err);
  if (block->bytes > whole) {
    hk_host_block *rest = malloc(sizeof *rest);
    if (rest == NULL) return hk_fail_memory(err, sizeof *rest, "a block of the host device");
    *rest = (hk_host_block){
        .at = block->at + whole, .bytes = block->bytes - whole, .next = block->next};
    block->bytes = whole;
    block->next = rest;
  }
  block->used = true;
  heap->free -= whole;
  *out = heap->base + block->at;
  return HK_OK;
}

/* Joins a free block with the free block behind it. */
static void merge_with_next(hk_host_block *block) {
  hk_host_block *next = block->next;
  if (block->used || next == NULL || next->used) return;
  block->bytes += next->bytes;
  block->next = next->next;
  free(next);
}

bool hk_host_heap_give(hk_host_heap *heap, void *memory) {
  hk_host_block *before = NULL, *block = heap->blocks;
  while (block != NULL && !(block->used && heap->base + block->at == (char *)memory)) {
    before = block;
    block = block->next;
  }
  if (block == NULL) return false;
  block->used = false;
  heap->free += block->bytes;
  merge_with_next(block);
  if (before != NULL) merge_with_next(before);
  return true;
}

bool hk_host_heap_owns(const hk_host_heap *heap, const void *memory) {
  const uintptr_t at = (uintptr_t)memory, base = (uintptr_t)heap->base;
  return at >= base && at < base + (uintptr_t)heap->bytes;
}

bool hk_host_heap_covers(const hk_host_heap *heap, const void *memory, hk_bytes bytes) {
  if (!hk_host_heap_owns(heap, memory)) return false;
  const hk_bytes at = (const char *)memory - heap->base;
  for (const hk_host_block *b = heap->blocks; b != NULL && b->at <= at; b = b->next) {
    if (at - b->at < b->bytes) return b->used && bytes <= b->bytes - (at - b->at);
  }
  return false;
}
