/* SPDX-License-Identifier: Apache-2.0 */
/* The link of a PCI device as the kernel tells it. */
#ifndef HK_ENGINE_PCI_LINK_H
#define HK_ENGINE_PCI_LINK_H

#ifdef __cplusplus
extern "C" {
#endif

/* Generation (1 to 6) and lanes of the link as it is now; 0 for what is not known. `pci` in small
 * letters: "0000:1b:00.0". `root` goes before /sys: "" but in tests. */
void hk_pci_link_read(const char *root, const char *pci, int *generation, int *width);

#ifdef __cplusplus
}
#endif
#endif
