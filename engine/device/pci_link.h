/* SPDX-License-Identifier: Apache-2.0 */
/* Generation and width of a PCI device's link, as the kernel reports them. */
#ifndef HK_ENGINE_DEVICE_PCI_LINK_H
#define HK_ENGINE_DEVICE_PCI_LINK_H

#ifdef __cplusplus
extern "C" {
#endif

/* Current generation (1 to 6) and number of lanes of the link; 0: not known. `pci`: address in
 * lower case, such as "0000:1b:00.0". `root` is put before /sys: "", except in tests. */
void hk_pci_link_read(const char *root, const char *pci, int *generation, int *width);

#ifdef __cplusplus
}
#endif
#endif
